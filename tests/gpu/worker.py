"""One process for the cases that train in process, so that torch is loaded once for all of them.

Reads a JSON object per line, {"case": name, "bench": {...}}, and answers with one per line; its
last one, after an unexpected error, says so with "last": true.
"""

import json
import os
import sys
import traceback
from typing import Any, TextIO

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before torch makes a handle

from tests.gpu import correctness
from tests.gpu.tools import Bench, Skip, Trouble


def answer(case: str, bench: Bench) -> dict[str, Any]:
    """Run a case: its status, figures, and a note."""
    try:
        figures = _run(case, bench)
    except Skip as reason:
        return {"status": "skipped", "note": str(reason)}
    except Trouble as trouble:
        return {"status": "failed", "note": str(trouble)}
    return {"status": "ok", "figures": figures}


def _run(case: str, bench: Bench) -> dict[str, Any]:
    group, _, name = case.partition("-")
    if group == "budgets":
        return correctness.honest_budgets(bench)
    return correctness.same_numbers(bench, name)


def serve(requests: TextIO, answers: TextIO) -> int:
    """Answer until there is no more to answer."""
    for line in requests:
        request = json.loads(line)
        try:
            found = answer(request["case"], Bench.from_json(request["bench"]))
        except Exception as error:
            traceback.print_exc()
            what = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            last = {"status": "failed", "note": what[:400], "last": True}
            print(json.dumps(last), file=answers, flush=True)
            return 1
        print(json.dumps(found), file=answers, flush=True)
    return 0


def main() -> int:
    """Serve on stdin and stdout; whatever else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return serve(sys.stdin, answers)


if __name__ == "__main__":
    raise SystemExit(main())
