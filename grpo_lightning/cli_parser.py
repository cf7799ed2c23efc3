"""The argument parser: LightningCLI's, with one line for a mistake instead of a page."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from itertools import islice, pairwise
from typing import Any, NoReturn

import yaml
from lightning.pytorch.cli import LightningArgumentParser

from grpo_lightning.errors import UserError

KEY = re.compile(r'Parser key "([^"]+)":')
VALUE = re.compile(r"(?:Got value|Given value|val|dot import path string)[:=] ?(.+?)\)?$", re.MULTILINE)
CLASS = re.compile(r"(?:given class_path |class_path=)'([\w.]+)'")
UNKNOWN = re.compile(
    r"unrecognized arguments: (?P<flag>\S+)|Option '(?P<argument>[^']+)' is not accepted"
    r"|(?:Subcommand|Group) '[^']+' does not accept option '(?P<key>[^']+)'|Key '(?P<other>[^']+)' is not expected"
)
REQUIRED = re.compile(r"the following arguments are required: ([\w.]*\w)")
EXPECTED = re.compile(r"Expected an? (?:<class '([\w.]+)'>|typing\.Literal\[(.+?)\])(?: |\.|$)", re.MULTILINE)
NO_IMPORT = re.compile(r"expects a function or a callable class: (.+?)(?:\. Got value|$)", re.MULTILINE)
INNER = re.compile(r"expects a function or a callable class: (Parser key .+?)\. Got value: Namespace", re.DOTALL)
NESTED = re.compile(r"NestedArg\(key='(\d+|init_args)', val=(?:'(.*?)'|(\w+))")
NO_FILE = re.compile(r"Unable to load config ['\"](.+?)['\"]")
NOISE = re.compile(
    r"Does not validate|Subtypes:|Errors:|Given value|Expected a <class 'NoneType'>|Problem with given|Expected a path"
)
NO_NAME = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")
NO_PATH = re.compile(r"Unexpected import path format: (\S+)")
AT_LINE = re.compile(r"cannot start any token.* line (\d+)")
NONE = re.compile("=None$")
OPTION = re.compile(r"-c|--?[A-Za-z][\w.+-]*(?==|$)")
BESIDE = "keys stand beside class_path, where only init_args may stand; move them to init_args"
TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list": "a list",
    "dict": "a mapping, {key: value}",
    "collections.abc.Iterable": "a list",
}


class OneLineParser(LightningArgumentParser):
    """Names the option, the value and the nearest valid option; abbreviated options are refused as unknown."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if os.path.basename(sys.argv[0]) == "__main__.py":
            kwargs.setdefault("prog", "python -m grpo_lightning")
        super().__init__(*args, **kwargs)
        self.allow_abbrev = False
        self.tells = True
        """False raises a mistake as ``UserError`` instead of ending the process."""
        self.left_out: set[str] = set()
        """Options that are not read from files, ``rollout.group_size``."""
        self._file = ""
        self._words: list[str] = []

    def parse_args(self, args: Sequence[str] | None = None, *more: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        self._words = list(sys.argv[1:] if args is None else args)
        if not self.exit_on_error:  # jsonargparse hands an option of a class inside a class on as Python writes it
            self._words = [NONE.sub("=null", word) for word in self._words]
        else:
            commands = self._subcommands_action
            self._words = files_first(self._words, commands.choices if commands is not None else ())
        return super().parse_args(self._words, *more, **kwargs)

    def parse_string(self, content: str, *args: Any, **kwargs: Any) -> Any:
        content = without(stand_in(content, self._words), self.left_out)
        return super().parse_string(content, *args, **kwargs)

    def parse_path(self, cfg_path: Any, *args: Any, **kwargs: Any) -> Any:
        self._file = str(cfg_path)
        parsed = super().parse_path(cfg_path, *args, **kwargs)
        self._file = ""
        return parsed

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # parsing inside parsing: the outer parser words it
            super().error(message, ex)
        line = one_line(message, self._options(), file=self._file)
        if not self.tells:
            raise UserError(line)
        sys.stderr.write(f"error: {line}\n")
        self.exit(2)

    def _options(self) -> list[str]:
        """Every option string, those of the subcommands included."""
        options = list(self._option_string_actions)
        if self._subcommands_action is not None:
            for parser in self._subcommands_action._name_parser_map.values():
                options += parser._option_string_actions
        return list(dict.fromkeys(options))


def files_first(words: Sequence[str], commands: Collection[str]) -> list[str]:
    """A command line with its files before the options inside them.

    jsonargparse goes from left to right and puts a file over what it has: ``--model.lr 1e-7 --config a.yaml`` would run
    at the file's rate. First come those of ``--config``, in their order, then those of groups (``--rollout r.yaml``).

    Args:
        words: of the command line.
        commands: names of the subcommands; what stands before one stays there.
    """
    first = next((i for i, word in enumerate(words) if word in commands), -1) + 1
    first += next((i for i, word in enumerate(words[first:]) if OPTION.match(word)), 0)
    options: list[list[str]] = []
    for word in words[first:]:
        if OPTION.match(word) or not options:
            options.append([word])
        else:
            options[-1].append(word)

    def rank(option: list[str]) -> int:
        found = OPTION.match(option[0])
        name, value = found[0] if found else "", option[0].partition("=")[2] or "".join(option[1:2])
        if name in ("-c", "--config", "-h", "--help"):
            return 0
        return 1 if "." not in name and os.path.isfile(value) else 2

    return [*words[:first], *(word for option in sorted(options, key=rank) for word in option)]


def stand_in(content: str, words: Sequence[str]) -> str:
    """A configuration in which a class that is not installed here has made room for the one that an option names.

    Each file is checked by itself before options are looked at, so that a package for GPUs alone could otherwise not
    be replaced on a machine that lacks it. Arguments stay, as where one class that can be imported follows another.

    Args:
        content: of the file, YAML.
        words: of the command line; ``--model.optimizer torch.optim.AdamW`` among them replaces that class.
    """
    chosen = dict(word[2:].split("=", 1) for word in words if re.match(r"--[\w.]+=", word))
    chosen |= {option[2:]: value for option, value in pairwise(words) if option.startswith("--")}
    try:
        config = yaml.safe_load(content)
    except yaml.YAMLError:
        return content  # the parser has its own words for that
    replaced = False
    for option, value in chosen.items():
        node: Any = config
        for name in option.split("."):
            node = inside(node).get(name)
        if isinstance(node, dict) and _is_missing(node.get("class_path")):
            node["class_path"] = value
            replaced = True
    return yaml.safe_dump(config, allow_unicode=True, sort_keys=False) if replaced else content


def without(content: str, options: Iterable[str]) -> str:
    """A configuration, YAML, that does not give these options."""
    if not options:
        return content
    config = yaml.safe_load(content)
    for option in options:
        *groups, name = option.split(".")
        node: Any = config
        for group in groups:
            node = inside(node).get(group)
        for place in (node, inside(node)):  # a key may stand beside class_path by mistake
            if isinstance(place, dict):
                place.pop(name, None)
    return yaml.safe_dump(config, allow_unicode=True, sort_keys=False)


def inside(group: Any) -> Any:
    """Where the options of a group, a mapping or parsed, stand: of a class, in ``init_args``; {} if it has none."""
    if not hasattr(group, "get"):
        return {}
    return (group.get("init_args") or {}) if group.get("class_path") is not None else group


def _is_missing(class_path: Any) -> bool:
    """True for a class of a package that is not installed."""
    package = class_path.partition(".")[0] if isinstance(class_path, str) else ""
    return package.isidentifier() and importlib.util.find_spec(package) is None


def one_line(message: str, options: Iterable[str], *, file: str = "") -> str:
    """What matters of a parser's message: option, value, reason, remedy.

    Args:
        message: as jsonargparse words it, over several lines.
        options: option strings the parser knows, for "did you mean".
        file: the configuration file that was being read.
    """
    inner = INNER.search(message)
    if inner:  # the class was found, and one of its own arguments is wrong
        message = message[: message.index("\n") + 1] + inner[1]
    option = ".".join(KEY.findall(message))
    unknown, required = UNKNOWN.search(message), REQUIRED.search(message)
    if unknown:
        return _unknown(unknown, option, message, options)
    if required:
        # Keys of the subcommand's own options begin with its name.
        name = f"{option}.{required.group(1)}" if option else required.group(1).partition(".")[2]
        return f"--{name} is missing; give it as an option or in a --config file"
    if not option:
        text = " ".join(_lines(message)).removeprefix("argument ").replace('in "<unicode string>", ', "at ")
        if "Unexpected config" in text:
            text = "holds no options; write them as `key: value`"
        if (line := AT_LINE.search(text)) and _has_tab(file, int(line[1])):
            text += "; YAML indents by spaces, and a tab stands there"
        return f"--config {file}: {text}" if file and not text.startswith("-") else text
    nested, no_file = NESTED.search(message), NO_FILE.search(message)
    if nested and nested[1].isdigit():
        return f"--{option}.{nested[1]}: a list is given whole; write --{option} [{nested[2] or nested[3]}]"
    if nested:
        return f"--{option}.{nested[1]} {nested[2] or nested[3]}: expected a mapping, {{key: value}}"
    if no_file:
        return (
            f"--{option.partition('.')[0]} {no_file[1]}: neither a mapping, {{key: value}}, nor a file that holds one"
        )
    values = VALUE.findall(message) or CLASS.findall(message)
    value = values[0].strip() if values else ""
    if (no_path := NO_PATH.search(message)) is not None:
        value = no_path[1]
    unimportable = CLASS.search(value) if NO_IMPORT.search(message) else None
    if unimportable:  # a class with its arguments, of which the name says enough
        value = unimportable[1]
    if "Not a valid subclass" in message:
        if "'class_path'" in value:
            return f"--{option}: {BESIDE}"
        return f"--{option} {value}: expected {_dotted_path(message)}"
    return f"--{option} {value}".rstrip() + f": {_reason(message, value)}"


def _has_tab(file: str, number: int) -> bool:
    """Whether that line of a file, counted from 1, has one."""
    try:
        with open(file, encoding="utf-8") as lines:
            return any("\t" in line for line in islice(lines, number - 1, number))
    except (OSError, UnicodeDecodeError):
        return False


def _reason(message: str, value: str) -> str:
    if no_name := NO_NAME.search(message):
        module, name = no_name.groups()
        loaded = sys.modules.get(module)
        known = {*dir(loaded), *getattr(loaded, "__all__", ())}  # the latter: what is imported when it is asked for
        close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
        return f"{module} has no {name}; " + (f"did you mean {close[0]}?" if close else "write a name that it has")
    if NO_PATH.search(message):
        path = value.removeprefix("./").replace(".py", "").strip("/").replace("/", ".")
        name = "" if ".py." in value or not value.endswith(".py") else ".NAME"
        return f"write the function's dotted path: {path}{name}"
    no_import = NO_IMPORT.search(message)
    if no_import:
        reason = no_import.group(1).rstrip(".")
        return f"cannot be imported ({reason}); install it, or write its dotted path, package.module.name"
    expected = [_dotted_path(message)] if "Expected a dot import path" in message else []
    for name, choices in EXPECTED.findall(message):
        expected.append(TYPES.get(name, name) if name else f"one of {choices.replace(chr(39), '')}")
    expected = [text for text in dict.fromkeys(expected) if text != "NoneType"]
    if expected == ["a list"]:
        return f"expected a list; write [{value}]"
    return f"expected {' or '.join(expected)}" if expected else " ".join(_lines(message))


def _dotted_path(message: str) -> str:
    return f"the dotted path of a {'function or class' if 'Callable' in message else 'class'}"


def _lines(message: str) -> list[str]:
    lines = [line.strip().removeprefix("- ") for line in KEY.sub("", message).splitlines()]
    return list(dict.fromkeys(line for line in lines if line and not NOISE.search(line)))


def _unknown(unknown: re.Match[str], option: str, message: str, options: Iterable[str]) -> str:
    """An option that does not exist, and the existing one that looks most like it."""
    name = next(group for group in unknown.groups() if group).partition("=")[0]
    if unknown["flag"] and not name.startswith("-"):
        return f"{name}: options begin with --; `--help` lists them"
    if unknown["argument"] == "class_path":  # the mapping was read as arguments of the base class
        return f"--{option}: {BESIDE}"
    name = name if name.startswith("-") else f"--{option}.{name}" if option else f"--{name}"
    classes = CLASS.findall(message)
    if unknown["argument"] and classes:
        place, _, last = name.rpartition(".")
        parameters = _parameters(classes[-1])
        close = difflib.get_close_matches(last, parameters, n=1)
        kind = classes[-1].rpartition(".")[2]
        hint = f"did you mean {place}.{close[0]}?" if close else f"{kind} has {', '.join(parameters)}"
    else:
        known = [known for known in options if not known.endswith(".help")]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else "`--help` lists the options"
    return f"{name}: unknown option; {hint}"


def _parameters(class_path: str) -> list[str]:
    """Parameters of a class's constructor and of those that its ``**kwargs`` go to."""
    module, _, name = class_path.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return []
    constructors = [vars(base)["__init__"] for base in inspect.getmro(kind) if "__init__" in vars(base)]
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    found = [
        parameter.name
        for constructor in constructors[:-1]  # the last is object's
        for parameter in list(inspect.signature(constructor).parameters.values())[1:]
        if parameter.kind in named
    ]
    return list(dict.fromkeys(found))
