"""Pictures of traces."""

import builtins
import re
from xml.etree import ElementTree

from tf_sparse_strategy import cli, timeline, trace
from tf_sparse_strategy.trace import COMPUTE, STEPS, Span


def worker(start=0):
    """Two buckets of one kind, and another kind that begins before them."""

    def bar(place, name, begin, end):
        return Span(place, name, start + begin, start + end, {"step": 4, "place": place})

    return [
        bar("g_1_12.all_reduce_sum.f.0", "g_1_12.all_reduce_sum x2", 40, 60),
        bar("g.all_reduce_sum.f.0", "g.all_reduce_sum", 30, 50),
        bar("r.all_to_all.f.0", "r.all_to_all", 10, 20),
        Span(COMPUTE, COMPUTE, start + 5, start + 35, {}),
        Span(STEPS, "step 4", start, start + 70, {}),
    ]


def test_lanes():
    found = timeline.lanes(worker())
    assert list(found) == ["steps", "computation", "r.all_to_all", "g.all_reduce_sum"]
    assert found["g.all_reduce_sum"] == [(30, 50), (40, 60)]
    assert timeline.lanes([]) == {}


def test_a_panel_per_rank_and_a_bar_per_operation(tmp_path):
    source, picture = tmp_path / "trace.json", tmp_path / "new" / "timeline.svg"
    trace.write(source, trace.chrome_trace({0: worker(), 3: worker(7)}, nodes=[0, 0, 1, 1]))
    assert cli.main(["trace", str(source), "--picture", str(picture)]) == 0
    drawn = ElementTree.fromstring(picture.read_text())
    written = {text for element in drawn.iter() if (text := (element.text or "").strip())}
    assert {"rank 0 (node 0)", "rank 3 (node 1)", "computation", "g.all_reduce_sum", "ms"} <= written
    lanes = [e for e in drawn.iter() if re.fullmatch(r"\w*PolyCollection_\d+", e.get("id", ""))]
    assert len(lanes) == 2 * len(timeline.lanes(worker()))


def test_a_trace_without_bars(tmp_path):
    timeline.draw(tmp_path / "empty.png", {"rank 0": []})
    assert (tmp_path / "empty.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn(tmp_path, capsys, monkeypatch):
    source = tmp_path / "trace.json"
    trace.write(source, trace.chrome_trace({0: worker()}, nodes=[0]))
    assert cli.main(["trace", str(source), "--picture", str(tmp_path / "x.txt")]) == 1
    assert "svg" in capsys.readouterr().err  # among the kinds that there are
    import_module = builtins.__import__

    def without_matplotlib(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return import_module(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    assert cli.main(["trace", str(source), "--picture", str(tmp_path / "x.svg")]) == 1
    assert "pip install matplotlib" in capsys.readouterr().err
