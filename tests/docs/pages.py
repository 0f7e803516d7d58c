"""The pages that people read, and what stands in them: links, code, commands."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS_WITH_A_README = ("cluster", "benchmarks", "examples", "ray_adaplr")
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(path for room in ROOMS_WITH_A_README for path in (ROOT / room).rglob("README.md")),
]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Code:
    """A piece of code on a page."""

    page: Path
    language: str  # of a block; "inline" within a sentence
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text}"


def code_of(page: Path) -> list[Code]:
    """Every block and every inline piece of code of a page."""
    text = page.read_text()
    blocks = [Code(page, language or "text", body) for language, body in FENCE.findall(text)]
    prose = FENCE.sub("", text)
    return blocks + [Code(page, "inline", body) for body in re.findall(r"`([^`\n]+)`", prose)]


def all_code() -> list[Code]:
    """The code of all pages."""
    return [code for page in PAGES for code in code_of(page)]


def command_lines(code: Code) -> Iterator[str]:
    """The lines of a shell block, continued ones joined, without comments and what follows a pipe."""
    for line in code.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield shlex.join(words)


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    found = set()
    for heading in re.findall(r"^#+\s+(.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        plain = re.sub(r"[`*]", "", heading).strip().lower()
        found.add(re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", plain)))
    return found


def links_of(page: Path) -> list[str]:
    """The targets of all links and images of a page, outside code."""
    prose = re.sub(r"`[^`\n]+`", "", FENCE.sub("", page.read_text()))
    return re.findall(r"\]\(([^)\s]+)\)", prose)
