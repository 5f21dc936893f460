from .base.errors import AccountError as AccountError
from .base.errors import BudgetTooSmallError as BudgetTooSmallError
from .base.errors import DataError as DataError
from .base.errors import DphpoBenchError as DphpoBenchError
from .base.errors import InvalidValueError as InvalidValueError
from .base.errors import OverBudgetError as OverBudgetError
from .harness.run import RunFailedError as RunFailedError
