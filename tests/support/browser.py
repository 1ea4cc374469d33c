"""A headless browser that opens a page, does things there and says what came of it."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_TOLD = re.compile(r'<pre id="told">(.*?)</pre>', re.DOTALL)
_SCRIPT = """<script>
const troubles = [];
window.addEventListener("error", (event) => troubles.push(event.message));
window.addEventListener("unhandledrejection", (event) => troubles.push(String(event.reason)));
console.error = (...words) => troubles.push(words.join(" "));
const frame = () => new Promise((done) => setTimeout(done, 40));
const tell = (what) => {
  const box = Object.assign(document.createElement("pre"), { id: "told" });
  box.textContent = JSON.stringify({ ...what, troubles });
  document.body.append(box);
};
const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key }));
const point = (kind, x, y, more = {}) => {
  const box = canvas.getBoundingClientRect(), of = kind === "wheel" ? WheelEvent : PointerEvent;
  const where = { clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true };
  canvas.dispatchEvent(new of(kind, { ...where, pointerId: 1, ...more }));
};
HTMLElement.prototype.setPointerCapture = () => {};
addEventListener("load", async () => {
  while (!window.report && !troubles.length) await frame();
  const done = (async () => { DOES })();
  done.then(tell, (error) => { troubles.push(String(error)); tell({}); });
});
</script>"""


def driven(page: bytes, does: str, folder: Path) -> dict[str, Any]:
    """What the JavaScript `does`, run in the page, returns, and the page's `troubles`. Skips the
    test where there is no browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser here")
    path = folder / "page.html"
    script = _SCRIPT.replace("DOES", does).encode()
    path.write_bytes(page.replace(b"<body>", b"<body>" + script, 1))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'browser'}", "--window-size=1400,900"]
    command += ["--virtual-time-budget=20000", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    told = _TOLD.search(done.stdout)
    assert told, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(html.unescape(told[1]))
    return found
