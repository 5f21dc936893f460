from .contract.parameters import Count as Count
from .contract.parameters import Decay as Decay
from .contract.parameters import Positive as Positive
from .contract.parameters import Share as Share
from .contract.parameters import check_fields as check_fields
from .recipes.dp_sgd import ClippingRule as ClippingRule
from .training.optimizer_names import OptimizerName as OptimizerName
from .training.optimizer_names import OptimizerOrTask as OptimizerOrTask
