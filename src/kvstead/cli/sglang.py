"""`kvstead sglang`: what kvstead's plugin replaces in the installed SGLang."""

from __future__ import annotations

import json
from typing import Annotated

import typer

sglang_app = typer.Typer(help="What kvstead's plugin does to SGLang.", no_args_is_help=True)


@sglang_app.callback()
def _sglang() -> None:
    """What kvstead's plugin does to SGLang."""  # a callback keeps `check` a command of its own


@sglang_app.command()
def check(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Tell class by class what the plugin replaces in the installed SGLang, and why not.

    Exits with 0 if the version is covered and everything can be replaced, with 1 if not, with 2 without SGLang.
    """
    # Importing SGLang takes a while.
    from kvstead.integrations.sglang.coverage import COVERED_VERSIONS, examine  # noqa: PLC0415
    from kvstead.report.console import output_console  # noqa: PLC0415
    from kvstead.report.table import coverage_table  # noqa: PLC0415

    coverage = examine()
    versions = " and ".join(COVERED_VERSIONS)
    if coverage.version is None:
        typer.echo(f"kvstead: SGLang is not installed here. The plugin is for {versions}.", err=True)
        raise typer.Exit(2)
    if as_json:
        classes = [
            {
                "class": finding.seat.theirs,
                "replaced_by": finding.seat.ours,
                "fault": finding.fault,
                "left_out": dict(finding.left_out),
                "inherited": dict(finding.inherited),
            }
            for finding in coverage.findings
        ]
        answer = {"version": coverage.version, "is_covered": coverage.is_covered, "classes": classes}
        typer.echo(json.dumps(answer, indent=2))
    else:
        state = "covered" if coverage.is_covered else f"not covered, so nothing is replaced ({versions} is)"
        rows = [(finding.seat.theirs, finding.fault, list(finding.left_out)) for finding in coverage.findings]
        output_console().print(coverage_table(f"SGLang {coverage.version} is {state}", rows))
    if coverage.faults or not coverage.is_covered:
        raise typer.Exit(1)
