from .recipes.picture_features import PictureFeatures as PictureFeatures
from .recipes.scattering import ScatteringFeatures as ScatteringFeatures
from .recipes.text_features import TextFeatures as TextFeatures
