"""What the run can be told, and what it must reach."""

from examples.text.settings import TextSettings

RECIPES = {
    "laptop": TextSettings(
        size="laptop",
        epochs=2,
        global_batch_size=64,
        learning_rate=2e-3,
        output_dir="build/language_model",
        goal=155.0,  # README: what three seeds reached
    ),
    # Batches of 128 on each of 4 workers; a text of its size is a file: --nosynthetic --text=FILE.
    "paper": TextSettings(
        size="paper",
        epochs=1,
        global_batch_size=512,
        learning_rate=2e-4,
        synthetic=True,
        output_dir="build/language_model",
    ),
}
