"""The proof that a plan neither races nor overflows, and trains the right numbers."""

from plans.checker.capacity import value_bytes
from plans.checker.check import findings, violations
