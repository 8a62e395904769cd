import json
import sys
from types import SimpleNamespace

import pytest

from mechanome.activations.texts import Texts, texts
from mechanome.core.errors import BadInput, CorruptFile, DownloadFailed, NotServed, UnknownName

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]


def jsonl(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_text_file_gives_paragraphs_or_the_documents_it_marks(tmp_path):
    plain, marked = tmp_path / "a.txt", tmp_path / "b.txt"
    plain.write_text("One line,\nand another.\n\n  \n\nSecond é.\n\n\n")
    marked.write_text("First.\n\nStill first.\n<|endoftext|>\nSecond.\fThird.")
    assert list(texts(plain)) == ["One line,\nand another.", "Second é."]
    assert list(texts(str(marked))) == ["First.\n\nStill first.", "Second.", "Third."]


def test_json_lines_of_objects_strings_and_chats(tmp_path):
    t = texts(jsonl(tmp_path / "t.jsonl", {"id": 1, "text": "one"}, {"text": "  "}, {"text": "two"}))
    assert list(t) == ["one", "two"] and t.kind == "text" and len(t) == 2
    assert list(texts(jsonl(tmp_path / "s.jsonl", "one", "two"))) == ["one", "two"]
    named = jsonl(tmp_path / "n.jsonl", {"body": "one", "text": "other"})
    assert list(texts(named, field="body")) == ["one"]
    c = texts(jsonl(tmp_path / "c.jsonl", {"messages": [{**m, "id": 3} for m in CHAT]}))
    assert c.kind == "chat" and list(c) == [CHAT]
    shared = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]
    assert list(texts(jsonl(tmp_path / "g.jsonl", {"conversations": shared}))) == [CHAT]


def test_parquet_of_several_row_groups(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    words = [f"text {i}" if i % 4 else None for i in range(23)]
    parquet.write_table(arrow.table({"n": range(23), "text": words}), tmp_path / "t.parquet", row_group_size=5)
    t = texts(tmp_path / "t.parquet")
    kept = [w for w in words if w]
    assert list(t) == kept and all(list(t.at(i)) == kept[i:] for i in range(len(kept) + 1))
    with pytest.raises(UnknownName, match="text"):
        texts(tmp_path / "t.parquet", field="txt")
    (tmp_path / "bad.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:-9])
    with pytest.raises(CorruptFile):
        texts(tmp_path / "bad.parquet")
    parquet.write_table(arrow.table({"messages": [CHAT, CHAT]}), tmp_path / "c.parquet")
    assert list(texts(tmp_path / "c.parquet")) == [CHAT, CHAT]


def test_without_pyarrow_parquet_says_how_to_get_it(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NotServed, match="pip install pyarrow"):
        texts(tmp_path / "t.parquet")


def test_a_folder_is_read_in_the_order_of_names_and_a_text_file_is_one_document(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "z.txt").write_text("Last.\n\nOf all.")
    (tmp_path / "b.txt").write_text("Third.\n\nAlso third.")
    jsonl(tmp_path / "a.jsonl", {"text": "first"}, {"text": "second"})
    (tmp_path / "notes.md").write_text("not read")
    t = texts(tmp_path)
    assert list(t) == ["first", "second", "Third.\n\nAlso third.", "Last.\n\nOf all."]
    assert all(list(t.at(i)) == list(t)[i:] for i in range(5))


def test_an_iterable_is_taken_once_and_read_again():
    t = texts(word for word in ("a", " ", "b", "c"))
    assert list(t) == list(t) == ["a", "b", "c"] and list(t.at(1)) == ["b", "c"]
    assert t[0] == "a" and t[-1] == "c" and texts(t) is t
    assert list(texts((str(i) for i in iter(int, 1)), limit=2)) == ["0", "0"]  # an endless one is not exhausted
    assert texts([CHAT, CHAT]).kind == "chat"
    with pytest.raises(IndexError):
        t[3]


def test_limit_is_a_first_part(tmp_path):
    path = jsonl(tmp_path / "t.jsonl", *({"text": str(i)} for i in range(9)))
    t = texts(path, limit=4)
    assert len(t) == 4 and list(t) == ["0", "1", "2", "3"] and list(t.at(3)) == ["3"] and list(t.at(4)) == []
    assert t.sha256 == texts(texts(path), limit=4).sha256 != texts(path).sha256


def test_the_same_texts_have_the_same_hash_wherever_they_are(tmp_path):
    path = jsonl(tmp_path / "t.jsonl", {"text": "one"}, {"text": "zwei é"})
    (tmp_path / "t.txt").write_text("one\n\nzwei é\n")
    same = {texts(source).sha256 for source in (path, tmp_path / "t.txt", ["one", "zwei é"])}
    assert len(same) == 1 and texts(["one", "zwei"]).sha256 not in same
    assert texts(["a b"]).sha256 != texts(["a", "b"]).sha256


def test_files_that_change_after_they_were_opened_are_not_read(tmp_path):
    path = jsonl(tmp_path / "t.jsonl", {"text": "one"})
    t = texts(path)
    jsonl(path, {"text": "another"})
    with pytest.raises(BadInput, match="changed"):
        t.at(0)
    path.unlink()
    with pytest.raises(BadInput, match="changed"):
        list(t)


WRONG = {
    "no-file": (lambda d: texts(d / "none.jsonl"), BadInput, "no such file"),
    "text-as-source": (lambda d: texts("One.\n\nTwo."), BadInput, r"texts\(\["),
    "unknown-ending": (lambda d: texts(_written(d, "a.docx", "x")), NotServed, r"\.jsonl"),
    "empty-file": (lambda d: texts(_written(d, "a.txt", "\n \n")), BadInput, "no text"),
    "empty-list": (lambda d: texts([]), BadInput, "no text"),
    "empty-folder": (lambda d: texts(d), BadInput, "holds no"),
    "no-field": (lambda d: texts(_written(d, "a.jsonl", '{"txt": "x"}\n')), UnknownName, "txt"),
    "near-field": (lambda d: texts(_written(d, "a.jsonl", '{"body": "x"}\n'), field="bodi"), UnknownName, "'body'"),
    "field-of-plain": (lambda d: texts(_written(d, "a.txt", "x"), field="text"), BadInput, "no fields"),
    "not-json": (lambda d: texts(_written(d, "a.jsonl", '{"text": "x"}\n{"text"\n')), CorruptFile, "byte 14"),
    "number": (lambda d: texts(_written(d, "a.jsonl", '{"text": 3}\n')), BadInput, "neither"),
    "not-utf8": (lambda d: texts(_bytes(d, "a.txt", b"\xff\xfe\x00x")), CorruptFile, "UTF-8"),
    "half-a-character": (lambda d: texts(["\ud800"]), BadInput, "Unicode"),
    "message-without-role": (lambda d: texts([[{"content": "x"}]]), BadInput, "role"),
    "message-of-none": (lambda d: texts([[{"role": "user", "content": None}]]), BadInput, "no text"),
    "mixed": (lambda d: texts(["a", CHAT]), BadInput, "apart"),
    "mapping": (lambda d: texts({"a": "b"}), BadInput, "list"),
    "limit-zero": (lambda d: texts(["a"], limit=0), BadInput, "limit"),
    "split-of-file": (lambda d: texts(_written(d, "a.txt", "x"), split="test"), BadInput, "split"),
    "field-of-list": (lambda d: texts(["a"], field="text"), BadInput, "field"),
    "beyond": (lambda d: texts(["a"]).at(2), BadInput, "place"),
    "near-corpus": (lambda d: texts("englsh"), UnknownName, "'english'"),
}


def _written(folder, name, content):
    (folder / name).write_text(content)
    return folder / name


def _bytes(folder, name, content):
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_text_is_refused(name, tmp_path):
    call, error, said = WRONG[name]
    with pytest.raises(error, match=said):
        call(tmp_path)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with one data set of two configs; records which files are fetched."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    import huggingface_hub

    fetched = []
    names = ["small/train/0000.parquet", "small/test/0000.parquet", "big/train/0000.parquet", "big/train/0001.parquet"]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(arrow.table({"text": [f"{name} {i}" for i in range(3)]}), path)

    class Api:
        def dataset_info(self, dataset, revision):
            if dataset != "owner/set":
                raise OSError("404 not found\nmore")
            assert revision == "refs/convert/parquet"
            return SimpleNamespace(
                sha="abc123", siblings=[SimpleNamespace(rfilename=n) for n in [".gitattributes", *names]]
            )

    def download(dataset, name, *, repo_type, revision, local_files_only):
        assert (dataset, repo_type, revision) == ("owner/set", "dataset", "abc123")
        fetched.append(name)
        return str(tmp_path / name)

    monkeypatch.delenv("MECHANOME_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return fetched


def test_a_hub_data_set_is_fetched_file_by_file_at_a_commit(hub):
    t = texts("owner/set:small", split="test")
    assert list(t) == [f"small/test/0000.parquet {i}" for i in range(3)] and t.id == "owner/set:small/test@abc123"
    hub.clear()
    first = texts("owner/set:big", limit=2)
    assert len(first) == 2 and hub == ["big/train/0000.parquet"]
    assert len(texts("owner/set:big", limit=5)) == 5


@pytest.mark.parametrize(
    ("name", "options", "error", "said"),
    [
        ("owner/set", {}, BadInput, "owner/set:big"),
        ("owner/set:smal", {}, UnknownName, "'small'"),
        ("owner/set:small", {"split": "tset"}, UnknownName, "'test'"),
        ("owner/set:big", {}, BadInput, "limit="),
        ("owner/other", {}, DownloadFailed, "404 not found"),
    ],
    ids=["which-config", "near-config", "near-split", "too-much", "unknown"],
)
def test_a_hub_name_that_is_not_exact_is_refused(hub, name, options, error, said):
    with pytest.raises(error, match=said):
        texts(name, **options)


def test_offline_the_hub_is_not_asked(monkeypatch):
    monkeypatch.setenv("MECHANOME_OFFLINE", "1")
    with pytest.raises(DownloadFailed, match="download its files once"):
        texts("owner/set")


def test_texts_are_plain_to_look_at():
    assert "given texts" in repr(texts(["a"])) and isinstance(texts(["a"]), Texts)
