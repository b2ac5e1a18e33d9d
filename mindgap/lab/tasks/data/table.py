"""The data sets as a static table: files, sha256, sizes, licence, and where the same bytes can be fetched.

Nothing here is part of the package: a data set is found in ``$MINDGAP_DATA``, in the cache, or fetched.
"""

from __future__ import annotations

from dataclasses import dataclass

from mindgap.base.check import one_of


@dataclass(frozen=True)
class DataFile:
    """One file of a data set: its name, the sha256 of its bytes, its length in bytes."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class DataSet:
    """One data set.

    Args:
        name: key in ``DATASETS`` and name of the folder.
        title: what it is.
        licence: what its origin states.
        files: the files, all needed.
        address: folder on the web that serves exactly these bytes, ending in ``/``; None where no public address does
            (then a mirror of one's own, ``$MINDGAP_MIRROR``, or a copy in ``$MINDGAP_DATA`` is needed).

    Example:
        >>> [file.name for file in DATASETS["ijcnn1"].files]
        ['ijcnn1.trn.bz2', 'ijcnn1.tst.bz2']
        >>> DATASETS["ptb"].file("ptb.test.txt.xz").size
        123576
    """

    name: str
    title: str
    licence: str
    files: tuple[DataFile, ...]
    address: str | None = None

    def file(self, name: str) -> DataFile:
        """The file of that name.

        Raises:
            RuleError: when the data set has no such file.
        """
        one_of("file", name, [file.name for file in self.files])
        return next(file for file in self.files if file.name == name)


#: sha256, bytes, data set / file
_MANIFEST = """
bcaed3e535d4637e47922c8bc6036acb2044895a4f00f7437a5da6a80e2ccd5a 2536056 ard/sorted_data_acl_labelled.tar.xz
05e2eec1f4ea419b5da6e5c1d64a5dc73ace933b159776ea9a6caf3aae6ca56d 16533534 cifar10/data_batch_1.webp.zip
77d8d5ba4561124904cf83682c59b01c107c64c6e02abb4a76310a191276824b 16746220 cifar10/data_batch_2.webp.zip
68df390e14cd53a04d53d74ea6abd95d73ee46f9cd7af5e1dd9db283f305616b 16750094 cifar10/data_batch_3.webp.zip
314a1f1c88fe63e41a8e293c0bf81e2718d3bdd9dde4bf7830a4553a1d5bef66 16726510 cifar10/data_batch_4.webp.zip
bc23c9089fcb65e665078d7f884cb9269395234d61aa667b147b1833b329eec2 16698852 cifar10/data_batch_5.webp.zip
e6d5d9c292302f096f9330dd26119deefcbb2617ab31746127661ac67ca7ab22 16558960 cifar10/test_batch.webp.zip
a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6 20001 cifar10/test_labels.json
a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45 100001 cifar10/train_labels.json
ba3c00d638416aef486f074de481e322bb12dcef46060034b1e0bea6240a8dc1 7038252 covtype/covtype.csv.xz
0a24130aa4df85b2fc2f08bff47952e571d20d997ec837e8eb0ce5ec134eea1d 5269552 fdu-mtl/fdu-mtl_train_test.tar.xz
21e851ea5478a823bc80a19cc22f88e31a041e1d5ff94cf5be1448ad0e395f57 13155224 glove/glove.6B.50d.vocab-subset.txt.xz
b38a4198ce142d43e96fb86d17b87211feec1f909ac344fa057455c69de29de3 1395175 ijcnn1/ijcnn1.trn.bz2
acd1db430684fdd3f0c768ecc49aa8e749d0004fc117611220c2aa576a7b6a24 2597597 ijcnn1/ijcnn1.tst.bz2
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6 1648877 mnist/t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6 4542 mnist/t10k-labels-idx1-ubyte.gz
440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609 9912422 mnist/train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c 28881 mnist/train-labels-idx1-ubyte.gz
a97f11d96f2e0690356d55a720f1c01d1745586cbc687fc4f609d6cd49ea4930 123576 ptb/ptb.test.txt.xz
aa7c7ac769e4614f02494a5c0426d7fc5226ba2c96cec8f897d7af9ff5d6945b 1190972 ptb/ptb.train.txt.xz
db806f69dbaa34525f88b45b027965d4acf3e8ae3e238fe856b0802d75799a6e 112024 ptb/ptb.valid.txt.xz
e4e28586282dbf6b4a227865553ea76bfac34a417adca58cfd3854209a0e0b0a 1116940 sentiment140/sentiment140_exact_rows.tsv.xz
d46925fb03bf38999f9b7c2a2b2df10c6b91eb079c06e954726a07620f5adca0 1412656 sentiment140/sentiment140_random50k_clipped.tsv.xz
a1fb34d00f74ce2c4d1bcb6ff5ef99e0ab4690fa8d94041dcba6bdae5ba79acd 20808 sentiment140/testdata.manual.2009.06.14.tsv.xz
ec139d0b4ca7e8dff393450c66e9c50a439e416ea24a9b6abe80d3d85dcebb12 179836 snli/snli_1.0_dev_tokenised.tsv.xz
d67505e193091ba27d19bdc77cff48612f30c4641c1613ba63ac936548f03c5d 234752 snli/snli_1.0_test.tsv.xz
6346f36e91c87715542f3918059f49c84c3b2c94130f16303fc79a0c5afded37 1771776 snli/snli_1.0_train_100k.tsv.xz
fb30651b986229f4498b875ab5fc555767147a1a4968a08b0c86eefb10acf418 614960 squad/dev-v2.0.json.xz
306c08b989e77ca6d5587c58d90bf8f8fa3be85671b0eda75315de9f68584fbe 336552 wikitext-2/test.txt.xz
7f5b03a0219b81adcc680f2d8bd24b7b3f19e4a01ac52f9533ca18cc807ac2bd 2736940 wikitext-2/train.txt.xz
1322771e23310248961e17b3c55df138cd3e5c57f2e36ac1d131e9c6158ccd74 305992 wikitext-2/valid.txt.xz
"""  # noqa: E501 - sums and names as they are

_MNIST_ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_IJCNN1_ADDRESS = (
    "https://raw.githubusercontent.com/X-DataInitiative/tick-datasets/"
    "9d959b6e53e17145e93e9849ff1f9f6d2de8ae51/binary/ijcnn1/"
)


def _files(name: str) -> tuple[DataFile, ...]:
    rows = [line.split() for line in _MANIFEST.split("\n") if line]
    return tuple(
        DataFile(path.split("/")[1], digest, int(size)) for digest, size, path in rows if path.split("/")[0] == name
    )


_TABLE = (
    DataSet(
        "ard",
        "Amazon reviews, 4 domains (Blitzer et al. 2007)",
        "no licence stated by the authors; research use",
        _files("ard"),
    ),
    DataSet(
        "cifar10",
        "CIFAR-10 (Krizhevsky 2009), lossless WebP sheets of 20 x 20 images",
        "no formal licence; cite the technical report",
        _files("cifar10"),
    ),
    DataSet("covtype", "UCI Covertype, 581,012 x 54, 7 classes", "CC BY 4.0", _files("covtype")),
    DataSet(
        "fdu-mtl",
        "16 review domains, tokenised",
        "carrier MIT; 14 domains are Amazon reviews without a stated licence",
        _files("fdu-mtl"),
    ),
    DataSet("glove", "91,116 lines of GloVe 6B 50d", "PDDL 1.0", _files("glove")),
    DataSet(
        "ijcnn1",
        "IJCNN 2001 challenge, 49,990 + 91,701 x 22, from the LIBSVM page",
        "carrier BSD-3; data without a stated licence",
        _files("ijcnn1"),
        _IJCNN1_ADDRESS,
    ),
    DataSet("mnist", "MNIST, 60,000 + 10,000 images of 28 x 28", "CC BY-SA 3.0", _files("mnist"), _MNIST_ADDRESS),
    DataSet(
        "ptb",
        "Penn Treebank text, Mikolov's preprocessing",
        "LDC user agreement; research use, not to be passed on",
        _files("ptb"),
    ),
    DataSet(
        "sentiment140",
        "Sentiment140: 34,836 exact rows, 50,000 random rows (first capital lost), 498 manual test rows",
        "no licence stated by the authors; research use",
        _files("sentiment140"),
    ),
    DataSet("snli", "SNLI: 100,000 of 550,152 training pairs, dev, test", "CC BY-SA 4.0", _files("snli")),
    DataSet("squad", "SQuAD dev-v2.0", "CC BY-SA 4.0", _files("squad")),
    DataSet("wikitext-2", "WikiText-2", "CC BY-SA 3.0", _files("wikitext-2")),
)

#: name -> data set
DATASETS = {data.name: data for data in _TABLE}


def table_markdown() -> str:
    """The table for the documentation.

    Example:
        >>> table_markdown().splitlines()[0]
        '| name | what | files | MB | licence, as its origin states it | fetched from |'
    """
    rows = [("name", "what", "files", "MB", "licence, as its origin states it", "fetched from"), ("---",) * 6]
    for data in DATASETS.values():
        size = sum(file.size for file in data.files) / 1e6
        place = data.address.split("/")[2] if data.address else "your own copy or mirror"
        rows.append((f"`{data.name}`", data.title, str(len(data.files)), f"{size:.1f}", data.licence, place))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
