"""A browser that is driven through its DevTools protocol, with the input of real hands."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

SIZE = 1400, 900


class Page:
    """The one page of a browser, which reads commands from a pipe and answers through another."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes]) -> None:
        self._commands, self._answers, self._number = commands, answers, 0
        self._text = b""
        self._session: dict[str, str] = {}
        self.troubles: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Performance"):
            self.call(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> int:
        """Give a command and do not wait; its number."""
        self._number += 1
        told = {"id": self._number, "method": method, "params": params, **self._session}
        self._commands.write(json.dumps(told).encode() + b"\0")
        self._commands.flush()
        return self._number

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Give a command and wait for its answer."""
        return self.answer(self.send(method, **params))

    def answer(self, number: int) -> dict[str, Any]:
        """The answer to a command; what the page complains of until then is kept."""
        while True:
            told = json.loads(self._message())
            self._hear(told)
            if told.get("id") == number:
                if "error" in told:
                    raise RuntimeError(f"the browser refuses: {told['error']['message']}")
                found: dict[str, Any] = told["result"]
                return found

    def _message(self) -> bytes:
        while b"\0" not in self._text:
            read = os.read(self._answers.fileno(), 1 << 20)
            if not read:
                raise RuntimeError("the browser is gone")
            self._text += read
        message, _, self._text = self._text.partition(b"\0")
        return message

    def _hear(self, told: dict[str, Any]) -> None:
        params = told.get("params", {})
        if told.get("method") == "Runtime.exceptionThrown":
            self.troubles.append(params["exceptionDetails"]["text"])
        if told.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.troubles.append(params["entry"]["text"])
        if told.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.troubles.append(str(params["args"]))

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript, or its promise, comes to."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", **asked)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def cpu_ms(self) -> float:
        """The processor time of the page's thread so far."""
        told = {one["name"]: one["value"] for one in self.call("Performance.getMetrics")["metrics"]}
        return 1e3 * float(told["ThreadTime"])

    def picture(self, path: Path) -> None:
        """Write what is seen as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def opened(browser: str, folder: Path) -> Iterator[Page]:
    """A page of a browser without a window, which keeps its files in a folder."""
    reads, commands = os.pipe()
    answers, writes = os.pipe()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    flags += [f"--user-data-dir={folder}", f"--window-size={SIZE[0]},{SIZE[1]}"]
    shell = ["sh", "-c", f'exec "$@" 3<&{reads} 4>&{writes}', "sh", browser, *flags, "about:blank"]
    process = subprocess.Popen(shell, pass_fds=(reads, writes), stderr=subprocess.DEVNULL)
    os.close(reads)
    os.close(writes)
    with open(commands, "wb") as told, open(answers, "rb", 0) as heard:
        try:
            yield Page(told, heard)
        finally:
            process.terminate()
            process.wait(30)
