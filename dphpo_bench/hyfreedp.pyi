from .external.tuner import Tuner as Tuner
from .recipes.voted_training import VotedTraining as VotedTraining
from .recipes.voting import Voted as Voted
from .recipes.voting import VotingRule as VotingRule
