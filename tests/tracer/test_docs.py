"""What the docs promise is what there is."""

import re
from pathlib import Path

import click

from ral_trace.tracer import schema
from ral_trace.tracer.cli import main_command

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_schema_page_is_current() -> None:
    page = (ROOT / "docs/trace-schema.md").read_text(encoding="utf-8")
    assert page == schema.as_markdown(), "write it anew: python -m ral_trace.tracer.schema > docs/trace-schema.md"


def test_every_option_in_the_readme_exists_and_every_recording_option_is_in_it() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    own = {name for parameter in main_command.params for name in parameter.opts if name.startswith("--")}
    context = click.Context(main_command)
    for name in main_command.list_commands(context):
        command = main_command.get_command(context, name)
        assert command is not None
        own |= {option for parameter in command.params for option in parameter.opts}
    used = {
        word
        for line in readme.splitlines()
        if "ral-trace " in line
        for word in re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", line)
    }
    assert used - {"--device"} <= own
    hidden = {"--leash", "--version", "--help", "--debug"}
    stated = set(re.findall(r"--[a-z]+(?:-[a-z]+)*", readme))
    assert {
        name for parameter in main_command.params for name in parameter.opts if name.startswith("--")
    } - hidden <= stated


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "ARCHITECTURE.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (ROOT / target).exists(), target


def test_paths_that_the_architecture_names_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:backend|tracer|analysis|dashboard|samples|tests|docs)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
