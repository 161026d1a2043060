"""What the run can be told, and what it must reach."""

from examples.text.settings import TextSettings

RECIPES = {
    "laptop": TextSettings(
        size="laptop",
        epochs=10,
        global_batch_size=64,
        learning_rate=5e-3,
        clip=5.0,
        output_dir="build/gnmt",
        goal=90.0,  # docs/recipes.md: what three seeds reached
    ),
    # 128 sentences on each of 4 workers; real ones are in a file: --nosynthetic --text=FILE.
    "paper": TextSettings(
        size="paper",
        epochs=1,
        global_batch_size=512,
        learning_rate=2e-3,
        schedule="halving",
        warm_up_steps=200,
        clip=5.0,
        synthetic=True,
        output_dir="build/gnmt",
    ),
}
