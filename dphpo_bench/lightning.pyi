from .external.lightning_callback import BudgetCallback as BudgetCallback
