"""SQL as people type it: statements that end with a semicolon, over any number of lines."""

import re
from typing import Final

# A quoted text or name, a comment, or dollar quotes: a semicolon inside does not end a statement. Unfinished ones reach to the end.
# Behind an E, a backslash keeps a quote inside the text.
_SKIPPED: Final = re.compile(
    r"(?<!\w)[eE]'(?:[^'\\]|''|\\.)*(?:'|$)|'(?:[^']|'')*(?:'|$)|\"(?:[^\"]|\"\")*(?:\"|$)|--[^\n]*(?:\n|$)|/\*.*?(?:\*/|$)|\$(\w*)\$.*?(?:\$\1\$|$)",
    re.DOTALL,
)


def split_statements(text: str) -> tuple[list[str], str]:
    r"""Return the finished statements of a text, without their semicolons, and what is left behind the last.

    Example:
        >>> split_statements("select ';' as a; -- done; \nselect 2")
        (["select ';' as a"], '-- done; \nselect 2')
    """
    statements, start, place = [], 0, 0
    while place < len(text):
        if skipped := _SKIPPED.match(text, place):
            place = max(skipped.end(), place + 1)
            continue
        if text[place] == ";":
            statements.append(text[start:place].strip())
            start = place + 1
        place += 1
    return [one for one in statements if not is_blank(one)], text[start:].strip()


def is_blank(text: str) -> bool:
    r"""Return whether a text is nothing but space and comments.

    Example:
        >>> is_blank("-- nothing\n"), is_blank("'--'")
        (True, False)
    """
    return not re.sub(r"--[^\n]*|/\*.*?\*/", "", _without_quotes(text), flags=re.DOTALL).strip()


def _without_quotes(text: str) -> str:
    return _SKIPPED.sub(lambda found: "" if found[0].startswith(("--", "/*")) else "x", text)
