"""From flags to settings: `--recipe` names where they start from, the other flags change it."""

import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Mapping

from absl import app, flags

from examples.common.settings import Settings

Recipes = Mapping[str, Settings]
flags.disclaim_key_flags()  # `--help` is to list them as the program's

_DEFINE = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}
_PARSERS = {int: flags.IntegerParser, float: flags.FloatParser, str: flags.ArgumentParser}


def define(recipes: Recipes, flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines `--recipe`, the first being the default, and a flag for each setting."""
    first = next(iter(recipes.values()))
    flags.DEFINE_enum(
        "recipe",
        next(iter(recipes)),
        list(recipes),
        "Where the other settings start from.",
        flag_values=flag_values,
    )
    hints = typing.get_type_hints(type(first))
    for field in dataclasses.fields(first):
        help, choices, hint = field.metadata["help"], field.metadata["choices"], hints[field.name]
        help += _starting_points(field.name, recipes)
        if isinstance(hint, types.UnionType):  # `float | None` may be left out
            parser = _OrNone(str if field.metadata["parse"] else hint, choices)
            flags.DEFINE(parser, field.name, None, help, flag_values=flag_values)
        elif choices:
            flags.DEFINE_enum(field.name, None, choices, help, flag_values=flag_values)
        else:
            kind = str if field.metadata["parse"] else hint
            _DEFINE[kind](field.name, None, help, flag_values=flag_values)


class _OrNone(flags.ArgumentParser):
    """Reads "none" where a recipe gives what is to be left out."""

    def __init__(self, hint, choices):
        [kind] = [option for option in typing.get_args(hint) or [hint] if option is not type(None)]
        names = [choice for choice in choices or () if choice is not None]
        self._value = flags.EnumParser(names) if names else _PARSERS[kind]()
        self.syntactic_help = "|".join([*names, "none"]) if names else "a value, or none to leave it out"

    def parse(self, argument):
        return None if argument == "none" else self._value.parse(argument)

    def flag_type(self):
        return self._value.flag_type()


def _starting_points(name: str, recipes: Recipes) -> str:
    """E.g. " Recipes: short 64, record 128."; nothing where no recipe gives it."""
    values = {recipe: getattr(settings, name) for recipe, settings in recipes.items()}
    if all(value is None for value in values.values()):
        return ""
    if len(set(values.values())) == 1:
        return f" Recipes: {next(iter(values.values()))}."
    return f" Recipes: {', '.join(f'{recipe} {value}' for recipe, value in values.items())}."


def chosen(recipes: Recipes, flag_values: flags.FlagValues = flags.FLAGS) -> Settings:
    """The run that the parsed flags ask for."""
    recipe = recipes[flag_values["recipe"].value]
    given = {}
    for field in dataclasses.fields(recipe):
        flag, parse = flag_values[field.name], field.metadata["parse"]
        if flag.present:
            given[field.name] = parse(flag.value) if parse and flag.value is not None else flag.value
    return dataclasses.replace(recipe, **given)


def run(program: Callable[[Settings], int], recipes: Recipes) -> None:
    """Ends the process with what `program` returns for the settings of the command line."""

    def main(argv: list[str]) -> int:
        if len(argv) > 1:
            raise app.UsageError(
                f"unknown arguments {argv[1:]}; all settings are flags, see --help."
            )
        try:
            settings = chosen(recipes)
        except ValueError as error:
            raise app.UsageError(str(error)) from error
        return program(settings)

    define(recipes)
    sys.exit(app.run(main))
