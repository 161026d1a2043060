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
        help, choices = field.metadata["help"], field.metadata["choices"]
        help += _starting_points(field.name, recipes)
        if choices:
            names = [choice for choice in choices if choice is not None]
            flags.DEFINE_enum(field.name, None, names, help, flag_values=flag_values)
        else:
            kind = str if field.metadata["parse"] else _type(hints[field.name])
            _DEFINE[kind](field.name, None, help, flag_values=flag_values)


def _type(hint) -> type:
    """The type of a flag; `float | None` is that of a float that may be left out."""
    if isinstance(hint, types.UnionType):
        [hint] = [option for option in typing.get_args(hint) if option is not type(None)]
    return hint


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
        value, parse = flag_values[field.name].value, field.metadata["parse"]
        if value is not None:
            given[field.name] = parse(value) if parse else value
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
