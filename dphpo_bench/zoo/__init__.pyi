from .dataset_task import ImageTask as ImageTask
from .dataset_task import Schedule as Schedule
from .dataset_task import TextTask as TextTask
