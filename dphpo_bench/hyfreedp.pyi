from .external.tuner import Tuner as Tuner
from .recipes.noise_law import Looked as Looked
from .recipes.noise_law import dummy_weights as dummy_weights
from .recipes.noise_law import first_rate as first_rate
from .recipes.noise_law import noise_walk as noise_walk
from .recipes.noise_law import output_noise as output_noise
from .recipes.tuned_training import TunedTraining as TunedTraining
