"""The documents tell the truth: tables, commands, dependencies."""

import re
import tomllib
from pathlib import Path

import pytest
import typer.main

from calibrant.cli.app import app
from calibrant.stats.report import list_reports
from calibrant.stats.schema_page import schema_page
from calibrant.stats.table_notes import TABLE_NOTES
from calibrant.stats.tables import SCHEMAS

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = sorted(typer.main.get_command(app).commands)


def documented_columns(section: str) -> dict[str, str]:
    """Column -> type of one section of docs/tables.md; a row may hold several columns of one or of several types."""
    found = {}
    for names, types in re.findall(r"^\| ([a-z_0-9, ]+) \| ([A-Za-z0-9, ]+) \|", section, re.MULTILINE):
        columns, kinds = names.split(", "), types.split(", ")
        if columns != ["column"]:
            found.update(zip(columns, kinds * len(columns) if len(kinds) == 1 else kinds, strict=False))
    return found


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_column_is_documented_with_its_type(table):
    text = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {table}: ")[1].split("\n## ")[0]
    assert documented_columns(section) == {name: str(dtype) for name, dtype in SCHEMAS[table].items()}


def test_the_page_of_the_tables_is_what_the_code_says():
    assert (ROOT / "docs" / "tables.md").read_text(encoding="utf-8") == schema_page(), "run: just docs"


@pytest.mark.parametrize("table", TABLE_NOTES)
def test_no_note_is_on_a_column_that_is_not_there(table):
    there = {"tensor_id", "sample", "values", "shape"} if table == "captures" else set(SCHEMAS[table])
    assert set(TABLE_NOTES[table].columns) <= there


@pytest.mark.parametrize("report", [report.name for report in list_reports()])
def test_every_report_is_documented(report):
    assert f"| `{report}` |" in (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_readme_and_has_an_example(command):
    assert f"calibrant {command}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "Example: calibrant " in typer.main.get_command(app).commands[command].help


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    for line in [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]:
        assert re.split(r"[<>=~ ]", line)[0] in text, line
        assert "<" in line, f"{line} has no upper bound"
        assert ">=" in line, f"{line} has no lower bound"
