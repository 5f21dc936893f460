from .zoo.scattering import ScatteringFeatures as ScatteringFeatures
from .zoo.texts import TextFeatures as TextFeatures
from .zoo.vision import PictureFeatures as PictureFeatures
