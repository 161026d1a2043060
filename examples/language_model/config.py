"""What the run can be told, and what it must reach."""

from examples.text.settings import TextSettings

RECIPES = {
    "laptop": TextSettings(
        size="laptop",
        epochs=2,
        global_batch_size=64,
        learning_rate=2e-3,
        clip=1.0,
        output_dir="build/language_model",
        goal=155.0,  # docs/recipes.md: what three seeds reached
    ),
    # Batches of 128 on each of 4 workers; a text of its size is a file: --nosynthetic --text=FILE. These are
    # 2,560 words of a worker, as the model was published; the paper counts 4,437 and does not say how. So
    # 85 % of the table's rows are distinct, not 80 %, and 35 % of those are prior, not 38 %.
    "paper": TextSettings(
        size="paper",
        epochs=1,
        global_batch_size=512,
        learning_rate=2e-4,
        clip=1.0,
        synthetic=True,
        output_dir="build/language_model",
    ),
}
