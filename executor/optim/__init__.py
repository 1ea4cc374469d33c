"""A shard's optimizer, its state in flat memory, and the fast update on the host."""

from executor.optim.optimizer import Carried, Scaling, ShardOptimizer
from executor.optim.recipe import Factory, Recipe, recipe_of
from executor.optim.settings import merged
