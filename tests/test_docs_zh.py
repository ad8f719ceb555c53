"""The Chinese documents keep up with the code and the English README; links, commands and queries are checked in all documents."""

import ast
import re
import shlex
from importlib import import_module
from pathlib import Path

import duckdb
import polars as pl
import pytest
import typer.main

from calibrant.cli.app import app
from calibrant.proto.any_config import parse_config
from calibrant.proto.optimize_conf import parse_optimize_conf
from calibrant.stats.tables import SCHEMAS

ROOT = Path(__file__).resolve().parents[1]
ENGLISH, README = ROOT / "README.md", ROOT / "README.zh-CN.md"
FOLDER = ROOT / "docs" / "zh-CN"
CHINESE = [README, *sorted(FOLDER.glob("*.md"))]
EVERY = [*CHINESE, ENGLISH, *sorted((ROOT / "docs").glob("*.md"))]
COUNTERPART = "README.zh-CN.md is the counterpart of README.md: what one has, the other has, in the same order"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def read(document):
    return document.read_text(encoding="utf-8")


def links(document):
    return [link for link in LINK.findall(FENCE.sub("", read(document))) if "://" not in link]


def blocks(document, language=""):
    return [body for kind, body in FENCE.findall(read(document)) if kind == language]


def lines_of(document, program="calibrant"):
    """Command lines of the fenced blocks, without a prompt and redirections; a synopsis with [--options] is none."""
    lines = [
        line.removeprefix("$ ").split(" < ")[0]
        for body in blocks(document)
        for line in body.replace("\\\n", "").splitlines()
    ]
    return [line for line in lines if line.startswith(f"{program} ") and " [" not in line]


def spans(document):
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", read(document)))


def commands_in_text(document):
    return [span for span in spans(document) if re.match("calibrant [a-z-]+( |$)", span)]


def configurations(document):
    """Blocks in AMCT's form: simple configurations, ATC's job, and JSON."""
    return [body for body in blocks(document) if re.match(r"#|activation_offset|common_config|calibration|\{", body)]


def python_names(document):
    """Names such as calibrant.config_files.create_config, of the text and of the Python blocks."""
    return sorted(
        set(
            re.findall(
                r"(?<!import )\b(calibrant(?:\.[a-z_]+)+)", "\n".join([*spans(document), *blocks(document, "python")])
            )
        )
    )


def sql_of(document):
    found = [shlex.split(line) for line in lines_of(document)]
    return [words[3] for words in found if words[1] == "sql" and len(words) > 3 and not words[3].startswith(".")]


def each(found, documents=CHINESE):
    return [
        pytest.param(document, one, id=f"{document.name}-{one[:50]}")
        for document in documents
        for one in dict.fromkeys(found(document))
    ]


def command_of(words):
    """Return the command that the words begin with, and the words behind it."""
    command, rest = typer.main.get_command(app), list(words)
    while hasattr(command, "commands"):
        assert rest, "a group of commands wants one of them"
        assert rest[0] in command.commands
        command = command.commands[rest.pop(0)]
    return command, rest


def commands_of_table(document):
    return re.findall(r"^\| `(calibrant [^`]+)` \|", read(document), re.MULTILINE)


def test_both_readmes_link_to_each_other():
    assert "README.zh-CN.md" in links(ENGLISH)
    assert "README.md" in links(README)


def test_both_readmes_list_the_same_commands():
    assert len(commands_of_table(ENGLISH)) > 20
    assert commands_of_table(README) == commands_of_table(ENGLISH), COUNTERPART


def test_both_readmes_show_the_same_examples():
    def shown(document):
        return [re.sub(r" +# .*", "", body) for _, body in FENCE.findall(read(document))]

    assert shown(README) == shown(ENGLISH), COUNTERPART


def test_the_chinese_readme_is_in_the_source_distribution():
    assert '"README.zh-CN.md"' in re.search(r"sdist\]\ninclude = .*", read(ROOT / "pyproject.toml")).group()


@pytest.mark.parametrize("document", CHINESE[1:], ids=lambda one: one.name)
def test_every_document_is_in_the_index_and_in_the_readme(document):
    if document.name != "README.md":
        assert document.name in links(FOLDER / "README.md")
        assert f"docs/zh-CN/{document.name}" in links(README)


@pytest.mark.parametrize(("document", "link"), each(links, EVERY))
def test_links_resolve(document, link):
    assert (document.parent / link.split("#")[0]).exists()


@pytest.mark.parametrize(("document", "line"), each(lines_of, EVERY))
def test_command_lines_parse(document, line):
    command, rest = command_of(shlex.split(line)[1:])
    assert command.make_context(command.name, rest).params


@pytest.mark.parametrize(("document", "span"), each(commands_in_text))
def test_commands_in_the_text_have_the_options_that_they_name(document, span):
    words = [word for word in re.sub("….*", "", span).split()[1:] if not word[0].isupper()]
    if not words[1:]:  # a group, such as `calibrant config`
        assert words[0] in typer.main.get_command(app).commands
        return
    command, rest = command_of(words)
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in rest if word.startswith("-")} <= {*known, "--help"}


@pytest.mark.parametrize(("document", "span"), each(lambda one: [span for span in spans(one) if span.startswith("--")]))
def test_options_in_the_text_are_options_of_a_command_or_of_amct(document, span):
    def options(command):
        inner = getattr(command, "commands", {}).values()
        return {name for parameter in command.params for name in parameter.opts}.union(*map(options, inner))

    amct = {
        "--model",
        "--save_path",
        "--calibration_config",
        "--batch_num",
        "--input_shape",
        "--data_dir",
        "--data_types",
        "--evaluator",
    }
    atc = {"--dynamic_batch_size", "--dynamic_image_size"}
    assert span.split()[0] in {*options(typer.main.get_command(app)), *amct, *atc, "--help"}


@pytest.mark.parametrize(("document", "line"), each(lambda one: lines_of(one, "just"), EVERY))
def test_lines_of_just_name_recipes_and_their_options(document, line):
    recipes = read(ROOT / "justfile")
    words = shlex.split(line)
    assert re.search(rf"^{words[1]}\b.*:", recipes, re.MULTILINE)
    assert all(f'long="{word[2:]}"' in recipes for word in words if word.startswith("--"))


@pytest.fixture(scope="module")
def empty_tables():
    with duckdb.connect() as connection:
        for name, schema in SCHEMAS.items():
            connection.register(name, pl.DataFrame(schema=schema))
        yield connection


@pytest.mark.parametrize(("document", "query"), each(sql_of, EVERY))
def test_queries_name_tables_and_columns_that_there_are(empty_tables, document, query):
    assert empty_tables.execute(query).description


@pytest.mark.parametrize("name", [one.stem for one in (ROOT / "calibrant" / "stats" / "sql").glob("*.sql")])
def test_every_named_report_is_described(name):
    assert f"`{name}`" in read(FOLDER / "accuracy_tuning.md")


@pytest.mark.parametrize("name", [*SCHEMAS, "captures"])
def test_every_table_is_listed(name):
    assert f"`{name}`" in read(FOLDER / "tables.md")


@pytest.mark.parametrize(("document", "text"), each(configurations))
def test_configurations_are_read(document, text):
    if text.startswith("calibration"):
        assert parse_optimize_conf(text).input_shapes
    else:
        assert parse_config(text)


@pytest.mark.parametrize(("document", "code"), each(lambda one: blocks(one, "python")))
def test_python_compiles_and_imports_what_there_is(document, code):
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("calibrant"):
            found = import_module(node.module)
            assert all(name.name in dir(found) or hasattr(found, name.name) for name in node.names)
    compile(tree, document.name, "exec")


@pytest.mark.parametrize(("document", "name"), each(python_names))
def test_python_names_exist(document, name):
    found, parts = import_module("calibrant"), name.split(".")[1:]
    for number, part in enumerate(parts):
        if part not in dir(found):
            found = import_module(".".join(["calibrant", *parts[: number + 1]]))
        elif number < len(parts) - 1:
            found = getattr(found, part)


@pytest.mark.parametrize("document", CHINESE, ids=lambda one: one.name)
def test_documents_are_chinese_and_name_no_machine(document):
    text = re.sub("`[^`]*`", "", FENCE.sub("", read(document)))
    assert len(re.findall(r"[\u4e00-\u9fff]", text)) > 200
    assert not re.search(r"/(home|work|tmp|root)/|[一-鿿][,;:]", text)


@pytest.mark.parametrize("document", CHINESE, ids=lambda one: one.name)
def test_paragraphs_are_one_line_since_a_break_shows_as_a_blank(document):
    text = FENCE.sub("", read(document))
    assert not re.findall(r"[^\x00-\x7f]\n(?![*#|<-]|\d+\. )\S.*", text)
