"""What of torch's compiler is loaded late is there as soon as something is compiled."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.forked import ended, started

SCRIPT = """
import sys
import torch
from executor import late

COMPILER = ("torch._dynamo", "torch.fx.experimental.symbolic_shapes", "sympy")

def there():
    return [name for name in COMPILER if type(sys.modules.get(name)) is type(sys)]

assert not there()
with late.compiler():
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    out = layer(torch.ones(1, 2))
    torch.autograd.backward([out], [torch.ones(1, 2)])
    optimizer.step()
    assert not there()
    compiled = torch.compile(layer, backend="eager")
    assert torch.equal(compiled(torch.ones(1, 2)), layer(torch.ones(1, 2)))
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    optimizer.step()
    assert there() == list(COMPILER)
assert there() == list(COMPILER)
print("all is there")
"""


def test_nothing_is_loaded_until_something_is_compiled(tmp_path: Path) -> None:
    """A step needs no compiler; who compiles a layer has all of it, from then on."""
    (tmp_path / "script.py").write_text(SCRIPT)
    said = tmp_path / "said"
    assert ended(started(["script.py"], said, tmp_path)) == 0, said.read_text()
    assert said.read_text().endswith("all is there\n")
