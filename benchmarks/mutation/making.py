"""Mutants of a file: every known small change, as a replacement of a piece of its text.

Not changed are docstrings, annotations, decorators, printing, error and log messages, and the counting of costs
(`spend`, MACs).
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import unified_diff

COMPARED = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
CALCULATED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_PAIRS = ("min max", "any all", "minimum maximum", "argmin argmax", "floor ceil", "sum max", "add discard")
CALLED = {a: b for pair in _PAIRS for a, b in (pair.split(), pair.split()[::-1])} | {"max": "min", "sum": "max"}
SILENT = {"__repr__", "__str__"}
"""Functions that only print."""
PRINTING = {"log", "say", "warnings", "echo", "spend"}
"""Functions that take text for people, or only count costs."""
EITHER_WAY = {
    *("isinstance", "issubclass", "suppress", "min", "max", "minimum", "maximum", "isclose", "allclose"),
    "array_equal",
}
"""Functions for which swapping arguments has no effect or always fails."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str
    """Path relative to the source folder."""
    place: str
    """Enclosing function or class, as `Class.function`; empty at the top level."""
    line: int
    lines: tuple[int, int]
    """First and last line of the changed statement: a test that runs none of them cannot detect the mutant."""
    at_import: bool
    """Whether the changed text runs on import, so that coverage assigns it to no test."""
    kind: str
    start: int
    """Offset of the replaced text, in characters."""
    old: str
    new: str
    key: str = ""

    def applied(self, source: str) -> str:
        found = source[self.start : self.start + len(self.old)]
        if found != self.old:
            raise ValueError(
                f"{self.file}:{self.line} holds {found!r}, expected {self.old!r}; draw the mutants again"
            )
        return source[: self.start] + self.new + source[self.start + len(self.old) :]

    def diff(self, source: str) -> str:
        before, after = source.splitlines(), self.applied(source).splitlines()
        return "\n".join(list(unified_diff(before, after, lineterm="", n=0))[3:])


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Return all mutants of a file; their keys stay the same while the lines that they change do."""
    lines = source.splitlines()
    seen: Counter[str] = Counter()
    found = []
    for mutant in _Maker(file, source).mutants():
        what = "|".join((file, mutant.place, mutant.kind, lines[mutant.line - 1].strip(), mutant.old, mutant.new))
        seen[what] += 1
        key = hashlib.sha256(f"{what}|{seen[what]}".encode()).hexdigest()[:12]
        found.append(replace(mutant, key=key))
    return found


def drawn(mutants: Iterable[Mutant], seed: int, count: int) -> list[Mutant]:
    """Draw `count` mutants, at most one of each kind per line.

    Those with the smallest hashes are chosen: a change elsewhere in a file does not change the draw, and a larger
    draw contains a smaller one.
    """
    chosen: dict[tuple[str, int, str], Mutant] = {}
    for mutant in sorted(mutants, key=lambda m: hashlib.sha256(f"{seed}|{m.key}".encode()).digest()):
        chosen.setdefault((mutant.file, mutant.line, mutant.kind), mutant)
    return list(chosen.values())[:count]


def lines_of_statement(source: str, line: int) -> tuple[tuple[int, int], str, bool]:
    """Return the lines of a statement, its enclosing function or class, and whether it runs on import."""
    within = [
        n
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or 0)
    ]
    within.sort(key=lambda n: (n.lineno, -(n.end_lineno or 0)))
    names = [n.name for n in within if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    at_import = not any(isinstance(n, ast.FunctionDef) for n in within)
    return (line, within[-1].end_lineno or line), ".".join(names), at_import


class _Maker:
    """Generates the mutants of one file."""

    def __init__(self, file: str, source: str) -> None:
        self._file, self._source = file, source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._text = source.splitlines(keepends=True)

    def mutants(self) -> Iterator[Mutant]:
        yield from self._body(ast.parse(self._source).body, "", at_import=True)

    def _offset(self, line: int, column: int) -> int:
        """Return the offset in characters; columns of the syntax tree are bytes of UTF-8."""
        return self._starts[line - 1] + len(self._text[line - 1].encode()[:column].decode())

    def _body(self, body: list[ast.stmt], place: str, at_import: bool) -> Iterator[Mutant]:
        for statement in body:
            yield from self._statement(statement, place, at_import)

    def _statement(self, node: ast.stmt, place: str, at_import: bool) -> Iterator[Mutant]:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.Global | ast.Nonlocal | ast.Pass):
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring, or an ellipsis
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name in SILENT or node.name.endswith("_macs") or _is_protocol(node):
                return
            inner = f"{place}.{node.name}".strip(".")
            if isinstance(node, ast.ClassDef):
                yield from self._body(node.body, inner, at_import)
                return
            defaults = [value for value in (*node.args.defaults, *node.args.kw_defaults) if value is not None]
            for value in defaults:
                yield from self._expression(value, node, inner, at_import, "default value: ")
            yield from self._body(node.body, inner, at_import=False)
            return
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Assign) and at_import and isinstance(node.value, ast.Subscript):
            return  # a type alias
        if isinstance(node, ast.Expr) and _prints(node.value):
            return
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self.macs":
            return
        yield from self._whole(node, place, at_import)
        for value in _own_expressions(node):
            yield from self._expression(value, node, place, at_import)
        for inside in _inside(node):
            yield from self._body(inside, place, at_import)

    def _whole(self, node: ast.stmt, place: str, at_import: bool) -> Iterator[Mutant]:
        def instead(kind: str, text: str) -> Mutant:
            return self._mutant(node, node, place, at_import, kind, text)

        if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
            yield instead("return value dropped", "return None")
        elif isinstance(node, ast.Continue | ast.Break):
            yield instead("loop", "break" if isinstance(node, ast.Continue) else "continue")
        elif isinstance(node, ast.Raise | ast.AugAssign) or (
            isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
        ):
            yield instead("statement deleted", "pass")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield instead("statement deleted", "pass")
            if not at_import and place:
                yield instead("early return", "return None")
        elif isinstance(node, ast.If | ast.While):
            yield self._mutant(node.test, node, place, at_import, "condition", f"(not ({ast.unparse(node.test)}))")
            if isinstance(node, ast.If):
                yield self._mutant(node.test, node, place, at_import, "condition", "False")

    def _expression(
        self, value: ast.expr, statement: ast.stmt, place: str, at_import: bool, prefix: str = ""
    ) -> Iterator[Mutant]:
        for node in _walk(value):
            for kind, changed in _changed(node):
                text = ast.unparse(changed)
                if not isinstance(node, ast.Constant | ast.Call | ast.Slice):
                    text = f"({text})"
                yield self._mutant(node, statement, place, at_import, prefix + kind, text)

    def _mutant(
        self, node: ast.expr | ast.stmt, statement: ast.stmt, place: str, at_import: bool, kind: str, new: str
    ) -> Mutant:
        start, end = (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno or 0, node.end_col_offset or 0),
        )
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        blocks = _inside(statement) if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) else []
        if blocks and blocks[0]:
            last = max(first, blocks[0][0].lineno - 1)  # the head of an `if`, not its body
        old = self._source[start:end]
        return Mutant(
            self._file, place, node.lineno, (first, last), at_import or "default" in kind, kind, start, old, new
        )


def _prints(node: ast.AST) -> bool:
    """Return whether a node is a call that prints or logs something."""
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id in PRINTING


def _is_protocol(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)


def _own_expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement itself, not of statements inside it."""
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "targets", "target", "returns", "decorator_list"):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.expr):
                yield each
            elif isinstance(each, ast.withitem):
                yield each.context_expr


def _inside(node: ast.stmt) -> list[list[ast.stmt]]:
    blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
    blocks += [handler.body for handler in getattr(node, "handlers", [])]
    blocks += [case.body for case in getattr(node, "cases", [])]
    return blocks


def _walk(node: ast.expr) -> Iterator[ast.expr | ast.Slice]:
    if isinstance(node, ast.JoinedStr) or _prints(node):
        return
    yield node
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("cast", "isinstance", "issubclass", "TypeVar"):
        yield from _walk(node.args[0])
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from _walk(child)
        elif isinstance(child, ast.keyword):
            if child.arg not in ("repr", "help", "name"):
                yield from _walk(child.value)
        elif isinstance(child, ast.comprehension):
            yield from _walk(child.iter)
            for condition in child.ifs:
                yield from _walk(condition)


def _changed(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield all changes of a single node."""

    def other(**fields: object) -> ast.expr:
        copy = deepcopy(node)
        for name, value in fields.items():
            setattr(copy, name, value)
        return copy

    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                for choice in COMPARED[type(operator)]:
                    yield "comparison", other(ops=[*node.ops[:index], choice(), *node.ops[index + 1 :]])
        case ast.BinOp(op=operator) if type(operator) in CALCULATED and not _is_text(node):
            yield "arithmetic", other(op=CALCULATED[type(operator)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield "sign" if isinstance(node.op, ast.USub) else "not", node.operand
        case ast.BoolOp():
            yield "and/or", other(op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
            for index in range(len(node.values)):
                left = [*node.values[:index], *node.values[index + 1 :]]
                yield "and/or: one left out", other(values=left) if len(left) > 1 else left[0]
        case ast.Constant(value=bool()):
            yield "constant", ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield from (("constant", ast.Constant(value)) for value in _numbers(node.value))
        case ast.IfExp():
            yield "condition", other(body=node.orelse, orelse=node.body)
        case ast.Slice():
            for bound in ("lower", "upper", "step"):
                if getattr(node, bound) is not None:
                    yield "slice", other(**{bound: None})
        case ast.Call():
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in CALLED:
                func = deepcopy(node.func)
                setattr(func, "id" if isinstance(func, ast.Name) else "attr", CALLED[name])
                yield "function", other(func=func)
            first_two = node.args[:2]
            starred = any(isinstance(each, ast.Starred) for each in first_two)
            if len(first_two) == 2 and not starred and name not in EITHER_WAY:
                yield "arguments swapped", other(args=[node.args[1], node.args[0], *node.args[2:]])


def _numbers(value: int | float) -> list[int | float]:
    return [other for other in dict.fromkeys((value + 1, value - 1, -value, 0 * value)) if other != value][:4]


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides
    )
