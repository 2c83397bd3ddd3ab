"""Which kernels are the same but for their template arguments.

`void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>(int, ...)` is a variant of
`at::native::vectorized_elementwise_kernel`. Names are read as demanglers write them (the Itanium C++ ABI's); what does
not look like that stays as it is.
"""

import re

OPERATOR = re.compile(r"operator(?: ?(?:<=>|<<=|>>=|<<|>>|<=|>=|->\*|->|<|>|\(\)|\[\])| [a-z_][\w ]*\*?(?=\())")
ANONYMOUS = "(anonymous namespace)"
CLONE = re.compile(r"(\.kd| \[clone [^\]]*\])+$")
"""What compilers append to the names of copies of a function, and AMD's to kernel descriptors."""
TRITON_TYPES = re.compile(r"_0d[0-9cde]*$")
"""What Triton 2 appended: which arguments are divisible by 16, or constant."""
TRITON_NUMBER = re.compile(r"_\d+$")
"""What Inductor appends, to tell its kernels apart."""
CLOSES = {">": "<", ")": "(", "}": "{"}
OPENS = ("<", "(", "{")
BRACKET = re.compile(r"[<>(){}]")
MOST_CHARACTERS = 4096
"""Of a name that are looked at; names that demanglers write are cut, too."""
PART = re.compile(r"(?:(?!\boperator\b)[^<>(){} ])+|.", re.DOTALL)


def family(name: str) -> str:
    """The name without template arguments, parameters and return type, and without what makes a variant unique."""
    base = TRITON_TYPES.sub("", CLONE.sub("", name))
    if base.startswith("triton_"):
        return TRITON_NUMBER.sub("", base) or name
    return _outermost(base[:MOST_CHARACTERS]) or base or name


def _outermost(name: str) -> str | None:
    """The text outside of brackets, after the return type. None: it is no signature."""
    kept: list[str] = []
    signature = False
    at = 0
    while at < len(name):
        part = _special(name, at) or PART.match(name, at)[0]  # type: ignore[index]  # it takes any character
        at += len(part)
        if part in OPENS:
            if not _may_open(part, kept):
                return None
            if part == "{" and name.startswith("lambda", at):
                kept.append("{lambda}")
            signature = True
            at = _closed(name, at, part)
            if part == "(" and not name.startswith("::", at):
                break  # what follows the parameters qualifies them
        elif part in CLOSES:
            return None
        elif part != " ":
            kept.append(part)
        elif not (kept and kept[-1].startswith("operator")):  # as in `operator< <int>`
            kept.clear()
    return "".join(kept) if signature else None


def _special(name: str, at: int) -> str | None:
    """What has brackets that are no brackets."""
    if name.startswith(ANONYMOUS, at):
        return ANONYMOUS
    begins = at == 0 or name[at - 1] in ": "
    found = OPERATOR.match(name, at) if begins else None
    return found.group() if found else None


def _may_open(bracket: str, kept: list[str]) -> bool:
    """Whether a bracket may stand after what was kept: arguments after a name, a lambda after a scope."""
    before = kept[-1] if kept else ""
    if bracket == "{":
        return not before or before.endswith("::")
    return bool(before) and (before[-1].isalnum() or before[-1] in "_})>]" or before.startswith("operator"))


def _closed(name: str, at: int, bracket: str) -> int:
    """Where the text after an opened bracket ends: behind the bracket that closes it, or at the end of a cut name.

    In parentheses `<` and `>` may be comparisons, and `->` is an arrow.
    """
    inside = [bracket]
    for found in BRACKET.finditer(name, at):
        part = found[0]
        if part in OPENS:
            inside.append(part)
        elif part != ">" or (inside[-1] == "<" and name[found.start() - 1] != "-"):
            if CLOSES[part] not in inside:
                continue
            while inside.pop() != CLOSES[part]:
                pass
            if not inside:
                return found.end()
    return len(name)
