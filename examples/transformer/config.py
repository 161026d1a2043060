"""What the run can be told, and what it must reach."""

from examples.text.settings import TwoModelSettings

RECIPES = {
    "laptop": TwoModelSettings(
        size="laptop",
        epochs=4,
        global_batch_size=64,
        learning_rate=2e-3,
        output_dir="build/transformer",
        goal=3.0,  # docs/recipes.md: what three seeds reached
    ),
    # 50 sentences on each of 4 workers; real ones are in a file: --nosynthetic --text=FILE.
    "paper": TwoModelSettings(
        size="paper",
        epochs=1,
        global_batch_size=200,
        learning_rate=6e-4,
        schedule="inverse_root",
        warm_up_steps=4_000,
        synthetic=True,
        output_dir="build/transformer",
    ),
}
