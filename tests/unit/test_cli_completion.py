"""Bash splits names at colons; the completion puts them together again."""

from __future__ import annotations

import pytest

from opdispatch_client.cli.completion import colons_in_bash, join_colon_words


@pytest.mark.parametrize(
    ("words", "place", "joined", "new_place"),
    [
        (["opdispatch", "table", "image", "::", "so"], 4, ["opdispatch", "table", "image::so"], 2),
        (["opdispatch", "table", "image", "::"], 3, ["opdispatch", "table", "image::"], 2),
        (["opdispatch", "table", "im"], 2, ["opdispatch", "table", "im"], 2),
        (["opdispatch", "table", ""], 2, ["opdispatch", "table", ""], 2),
        (["opdispatch", "--address", "unix", ":", "///a", "ops", ""], 6,
         ["opdispatch", "--address", "unix:///a", "ops", ""], 4),
        (["opdispatch", "call", "a", "::", "b", "x"], 5, ["opdispatch", "call", "a::b", "x"], 3),
    ],
)  # fmt: skip
def test_names_with_colons_are_one_word(words, place, joined, new_place):
    assert join_colon_words(words, place) == (joined, new_place)


def test_completions_lose_what_bash_has_already(monkeypatch, capsys):
    monkeypatch.setenv("_OPDISPATCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "opdispatch\ntable\nimage\n::\nso")
    monkeypatch.setenv("COMP_CWORD", "4")
    with colons_in_bash():
        print("image::sobel\nimage::soften")
    assert capsys.readouterr().out == "sobel\nsoften\n"


def test_other_runs_are_left_alone(monkeypatch, capsys):
    monkeypatch.delenv("_OPDISPATCH_COMPLETE", raising=False)
    with colons_in_bash():
        print("image::sobel")
    assert capsys.readouterr().out == "image::sobel\n"
