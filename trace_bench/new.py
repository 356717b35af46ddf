"""Writes a file to begin with into the working folder: an example under a name of yours.

python -m trace_bench.new env desk       # desk.py, an environment that passes all checks
python -m trace_bench.new method prompts # prompts.py, a method
python -m trace_bench.new algorithm mine # mine.py, an algorithm of RL
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from trace_bench.core.command import command, parser
from trace_bench.core.errors import UserError
from trace_bench.core.factory import elsewhere
from trace_bench.settings.choices import conf_dir

# The example of each kind, and how the command goes on that a reader of its file runs first.
KINDS = {
    "env": ("desk", ".check env.factory={}:Suite"),
    "method": ("best_of_prompts", " method=custom method.factory={}:BestOfPrompts budget=160"),
    "algorithm": ("ranks", " method=grpo trainer.algorithm={}:Ranks budget=160"),
}


@command()
def main(arguments: Sequence[str]) -> int:
    words = parser("new", __doc__)
    words.add_argument("kind", choices=KINDS)
    words.add_argument("name", help="of the module: small letters, digits and _")
    options = words.parse_args(arguments)
    write(options.kind, options.name)
    following = KINDS[options.kind][1].format(options.name)
    print(f"{options.name}.py is written. Next: python -m trace_bench{following}")
    return 0


def write(kind: str, name: str) -> None:
    """Writes the example of a kind as NAME.py. Raises UserError for a name that cannot be used."""
    example = KINDS[kind][0]
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UserError(
            f"{name!r} is no name of a module; allowed: small letters, digits and _, such as "
            f"my_{kind}. Change NAME."
        )
    file = Path(f"{name}.py")
    try:
        if not file.exists() and (origin := elsewhere(name)):
            raise UserError(f"{name} is another module, {origin}. Change NAME.")
        source = conf_dir().parent / "examples" / f"{example}.py"
        text = re.sub(rf"\b{example}\b(?=[:/\",])", name, source.read_text(encoding="utf-8"))
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise UserError(f"{file} is there already, and stays as it is. Change NAME.") from None
    except OSError as error:
        raise UserError(f"{file} could not be written: {error.strerror}. Change NAME.") from None


if __name__ == "__main__":
    sys.exit(main())
