"""The interactive prompt of `calibrant sql RUN`: completion of tables and columns, history, statements over several lines."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from calibrant.cli.sql_session import COMMANDS, SqlSession
from calibrant.cli.sql_statements import is_blank, split_statements
from calibrant.stats.report import list_reports
from calibrant.stats.run import Run

_WORD: Final = re.compile(r"[\w.\"]*$")
_SOURCES: Final = re.compile(
    r'(?:from|join)\s+"?([\w.]+)"?(?:\s+(?:as\s+)?(?!on\b|using\b|where\b|join\b|left\b|order\b|group\b)(\w+))?',
    re.IGNORECASE,
)
_KEYWORDS: Final = (
    "select", "from", "where", "join", "left join", "using", "group by", "order by", "having", "limit", "with", "as", "distinct",
    "union all", "case", "when", "then", "else", "end", "and", "or", "not", "in", "is null", "like", "between", "desc", "count",
    "sum", "avg", "min", "max", "round", "median", "quantile_cont", "over", "partition by",
)  # fmt: skip


class SqlCompleter(Completer):
    """Completes tables, the columns of those that a statement names, reports and commands.

    Args:
        columns: table -> its columns.
    """

    def __init__(self, columns: Mapping[str, Sequence[str]]) -> None:
        self._columns = columns
        self._reports = [report.name for report in list_reports()]

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield what the word before the cursor may become."""
        before = document.text_before_cursor
        found = _WORD.search(before)
        word = found[0] if found else ""
        for text, what in self._candidates(before, word, document.text):
            if text.lower().startswith(word.lower()) and text != word:
                yield Completion(text, start_position=-len(word), display_meta=what)

    def _candidates(self, before: str, word: str, text: str) -> Iterator[tuple[str, str]]:
        line = before.lstrip()
        if line.startswith("."):
            yield from self._of_command(line)
            return
        sources = self._sources(text)
        owner, dot, _ = word.rpartition(".")
        if dot and owner in sources:
            yield from ((f"{owner}.{column}", sources[owner]) for column in self._columns[sources[owner]])
            return
        named = dict.fromkeys(sources.values())
        if re.search(r"(?:from|join)\s+[\w.\"]*$", before, re.IGNORECASE) is None:
            yield from ((column, table) for table in named or self._columns for column in self._columns[table])
        yield from ((table, "table") for table in self._columns)
        yield from ((keyword, "") for keyword in _KEYWORDS)

    def _sources(self, text: str) -> dict[str, str]:
        """Return the tables that a statement names, by their names and aliases."""
        found = {}
        for table, alias in _SOURCES.findall(text):
            if table in self._columns:
                found[table] = table
                found[alias or table] = table
        return found

    def _of_command(self, line: str) -> Iterator[tuple[str, str]]:
        name, space, _ = line.partition(" ")
        if not space:
            yield from COMMANDS.items()
        elif name == ".schema":
            yield from ((table, "table") for table in self._columns)
        elif name == ".report":
            yield from ((report, "report") for report in self._reports)


def converse(run: Run, session: SqlSession, **streams: Any) -> None:
    """Read statements at a prompt and answer them, until the user leaves.

    Args:
        run: the run, for the greeting.
        session: answers them.
        streams: ``input`` and ``output`` of prompt_toolkit, where they are not the terminal.
    """
    sys.stdout.write(f"{run.info.model_name}, {run.info.samples} samples; end a query with ; and see .help\n")
    prompt: PromptSession[str] = PromptSession(
        "sql> ",
        completer=SqlCompleter(session.catalog.columns()),
        history=_history(),
        key_bindings=_keys(),
        multiline=Condition(lambda: True),
        prompt_continuation="...> ",
        complete_while_typing=False,
        **streams,
    )
    while not session.is_over:
        try:
            session.read(prompt.prompt())
        except KeyboardInterrupt:  # the line is dropped, as in a shell
            continue
        except EOFError:
            return


def is_finished(text: str) -> bool:
    """Return whether Enter sends a text: a command, or statements of which the last one has its semicolon.

    Example:
        >>> is_finished("select 1"), is_finished("select 1;"), is_finished(".tables"), is_finished("")
        (False, True, True, True)
    """
    if text.lstrip().startswith("."):
        return True
    statements, left = split_statements(text)
    return is_blank(left) and (bool(statements) or is_blank(text))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_finished(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return keys


def _history() -> History:
    """Keep the history where the user's state is kept; in memory where that is not writable."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    file = Path(state) / "calibrant" / "sql_history"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("a").close()
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))
