"""Tasks with lengths: sequences to measure them with, and what must hold of them."""

from executor.profiling.tokens.draws import check_draws, check_steady
from executor.profiling.tokens.linear import bad_fits, check_linear
from executor.profiling.tokens.mixing import TO_PACK, mixes
from executor.profiling.tokens.sequences import (
    check_asked,
    check_evaluation,
    one,
    sizes,
    tried,
)
from executor.profiling.tokens.summing import check_sums
