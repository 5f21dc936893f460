from .dataset_task import Schedule as Schedule
from .image_task import ImageTask as ImageTask
from .text_task import TextTask as TextTask
