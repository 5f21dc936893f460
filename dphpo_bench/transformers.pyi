from .external.transformers_callback import BudgetCallback as BudgetCallback
