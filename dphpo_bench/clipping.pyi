from .training.clipping import Abadi as Abadi
from .training.clipping import AutoS as AutoS
from .training.clipping import AutoV as AutoV
from .training.clipping import Clipping as Clipping
from .training.clipping import Psac as Psac
from .training.clipping import parse_clipping as parse_clipping
