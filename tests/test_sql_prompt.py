"""The prompt of `calibrant sql RUN`: statements over several lines, completion, commands, history, errors in one line."""

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from run_tables import data, layer, make_run

from calibrant.cli.sql_prompt import SqlCompleter, converse, is_finished
from calibrant.cli.sql_session import COMMANDS, SqlSession
from calibrant.cli.sql_statements import is_blank, split_statements
from calibrant.stats.catalog import open_catalog


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "r", {"layers": [layer(0, "a"), layer(1, "b")], "quant_params": [data(0, sqnr_db=20.0)]})


@pytest.fixture
def session(run):
    with open_catalog(run) as catalog:
        yield SqlSession(catalog)


@pytest.mark.parametrize(
    ("text", "statements", "left"),
    [
        ("select 1", [], "select 1"),
        ("select 1; select 2;", ["select 1", "select 2"], ""),
        ("select ';' as a, \";\" as b;", ["select ';' as a, \";\" as b"], ""),
        ("select 'it''s;' as a; x", ["select 'it''s;' as a"], "x"),
        ("select 1 -- a; b\n+ 1;", ["select 1 -- a; b\n+ 1"], ""),
        ("select /* ; */ 1;", ["select /* ; */ 1"], ""),
        ("select $$;$$, $a$;$$;$a$;", ["select $$;$$, $a$;$$;$a$"], ""),
        ("select 'open;", [], "select 'open;"),
        (r"select e'it\';', date'2020-01-01'; x", [r"select e'it\';', date'2020-01-01'"], "x"),
        (";; ;", [], ""),
    ],
)
def test_a_semicolon_ends_a_statement_unless_it_is_quoted_or_commented(text, statements, left):
    assert split_statements(text) == (statements, left)


def test_space_and_comments_are_blank_and_quoted_comments_are_not():
    assert is_blank(" \n-- a\n/* b\n */ ")
    assert not is_blank("'/* a */'")
    assert not is_blank("select 1 -- a")


def test_enter_sends_what_is_finished():
    assert [is_finished(text) for text in ("select", "select ';'", "select 1;", ".tables", " ")] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_statements_over_lines_are_answered_and_errors_do_not_end_the_session(session, capsys):
    session.read("create temp view t as select 7 as seven;\nselect nothing;\nselect seven\nfrom t;\n.nonsense\n.help")
    captured = capsys.readouterr()
    assert "seven\n-----\n    7\n.tables" in captured.out
    errors = captured.err.splitlines()
    assert len(errors) == 2
    assert "nothing" in errors[0]
    assert errors[1].startswith("error: no command '.nonsense'; commands: .tables .schema")
    assert session.failures == 2


def test_commands_tell_tables_columns_and_reports(session, capsys):
    session.read(".tables\n.schema layers\n.reports\n.report unquantized sql\n.format csv\n.report ranking")
    out = capsys.readouterr().out
    assert "layers           a layer that AMCT could quantize" in out
    assert "macs          Int64" in out
    assert "dead_channels        Channels of data" in out
    assert "-- Layers that stay in float, and why" in out
    assert "layer,op_type,error_percent" in out
    assert "\na,Conv,10.0,20.0,20.0" in out  # 20 dB is a tenth of the signal


def test_wrong_names_are_told_with_the_nearest(session, capsys):
    session.read(".schema layer\n.report rankin\n.format cvs\n.quit\nselect 1")
    captured = capsys.readouterr()
    assert "no table 'layer'; did you mean 'layers'?" in captured.err
    assert "no report 'rankin'; did you mean 'ranking'?" in captured.err
    assert "is not a format; did you mean 'csv'?" in captured.err
    assert captured.out == ""
    assert session.is_over


def test_a_report_of_two_runs_asks_for_the_second_and_words_behind_a_report_are_known(session, capsys):
    session.read(".report compare_runs\n.report ranking sqll")
    errors = capsys.readouterr().err.splitlines()
    assert errors[0] == "error: report 'compare_runs' compares two runs; pass the second one with --against RUN2"
    assert errors[1] == "error: .report ranking sqll: 'sqll' is not known; pass the name alone, or sql behind it"


def test_tables_of_a_second_run_have_a_schema_as_well(run, capsys):
    with open_catalog(run, run) as catalog:
        SqlSession(catalog).read(".schema against.layers\n.report compare_runs")
    captured = capsys.readouterr()
    assert "macs          Int64" in captured.out
    assert captured.err == ""


def test_long_answers_are_cut_in_the_prompt_and_say_so(session, capsys):
    session.most_rows = 3
    session.read("select * from range(1234);")
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1].strip() == "2"
    assert "3 of 1,234 rows" in captured.err


def completions(run, text, cursor=None):
    with open_catalog(run) as catalog:
        completer = SqlCompleter(catalog.columns())
    document = Document(text, len(text) if cursor is None else cursor)
    return [one.text for one in completer.get_completions(document, CompleteEvent())]


def test_tables_and_the_columns_of_named_tables_are_completed(run):
    assert completions(run, "select * from lay") == ["layers"]
    assert completions(run, "select ma from layers", len("select ma")) == ["macs", "max"]
    assert completions(run, "select l.chan from layers l", len("select l.chan")) == ["l.channels_out", "l.channels_in"]
    assert "clip_rate" in completions(run, "select clip")
    assert completions(run, ".rep") == [".reports", ".report"]
    assert completions(run, ".report rank") == ["ranking"]
    assert completions(run, ".schema lay") == ["layers"]
    assert completions(run, ".") == list(COMMANDS)


def talk(run, keys, **changes):
    """Send keys to the prompt through a pseudo-terminal's pipe."""
    with open_catalog(run) as catalog, create_pipe_input() as keyboard:
        session = SqlSession(catalog, **changes)
        keyboard.send_text(keys)
        converse(run, session, input=keyboard, output=DummyOutput())
    return session


def test_the_prompt_answers_and_remembers(run, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    talk(run, "select count(*) as n\nfrom layers;\n.quit\n")
    assert capsys.readouterr().out == "m, 4 samples; end a query with ; and see .help\nn\n-\n2\n"
    history = (tmp_path / "calibrant" / "sql_history").read_text()
    assert "+select count(*) as n\n+from layers;" in history
    talk(run, "select 3 as three;\n\x04")  # Ctrl-D leaves
    assert "three\n-----\n    3\n" in capsys.readouterr().out


def test_control_c_drops_the_line_only(run, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder")  # the history stays in memory
    talk(run, "select garbage\x03select 5 as five;\n\x04")
    out = capsys.readouterr().out
    assert "five\n----\n   5\n" in out
    assert "garbage" not in out
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "calibrant" / "sql_history").mkdir(parents=True)  # a folder has the place of the file
    talk(run, "select 6 as six;\n\x04")
    assert "six\n---\n  6\n" in capsys.readouterr().out
