"""`docs/reference/conformance.md` from statements and tests: `python -m tests.conformance.document` writes it."""

import ast
from pathlib import Path

from tests.conformance.statements import GAPS, NOT_SHOWN, STATEMENTS

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "reference" / "conformance.md"
_VERSIONS = {5: "MQTT 5.0", 4: "MQTT 3.1.1"}
_WHOM = {"S": "server", "B": "both", "C": "client"}
_INTRO = """# Conformance

Every normative statement of both specifications, in a few words, with the tests that show it. The tests speak to the
broker packet by packet (`tests/conformance/`); statements that bind clients are shown by what the broker does with a
client that breaks them. This page is made from the tests and checked by one: `python -m tests.conformance.document`.

## Gaps

"""


def cited(version: int) -> dict[str, list[str]]:
    """Statement id -> the tests that cite it, each as file and name."""
    found: dict[str, list[str]] = {}
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                for number in _clauses(node, version):
                    found.setdefault(number, []).append(f"{path.stem}.{node.name}")
    return found


def _clauses(function: ast.FunctionDef, version: int) -> list[str]:
    for each in function.decorator_list:
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "clauses":
            if version == 5:
                values = each.args
            else:
                values = [one.value for one in each.keywords if one.arg == "v4"]
            text = " ".join(ast.literal_eval(value) for value in values)
            return [one.removeprefix("MQTT-") for one in text.split()]
    return []


def page() -> str:
    """The page's text."""
    out = [_INTRO, GAPS, "\n"]
    for version, name in _VERSIONS.items():
        statements, tests, reasons = STATEMENTS[version], cited(version), NOT_SHOWN[version]
        shown = sum(number in tests for number in statements)
        out.append(f"\n## {name}\n\n{shown} of {len(statements)} statements are shown by tests here.\n\n")
        out.append("| statement | binds | says | shown by |\n|---|---|---|---|\n")
        for number, (whom, text) in statements.items():
            how = "<br>".join(f"`{one}`" for one in tests.get(number, [])) or reasons.get(number, "")
            out.append(f"| MQTT-{number} | {_WHOM[whom]} | {text} | {how} |\n")
    return "".join(out)


if __name__ == "__main__":
    PAGE.write_text(page())
