from importlib.metadata import version

import pytest
from packaging.version import Version

from docs.build.protocol import PROTOCOL, ROOT, generate
from router.picker.protocol import ext_proc_pb2, health_pb2

GENERATED = sorted(path.relative_to(ROOT) for path in (ROOT / PROTOCOL).glob("*_pb2.py*"))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    out = tmp_path_factory.mktemp("generated")
    generate(out)
    return out


def test_nothing_is_missing(fresh):
    assert sorted(path.relative_to(fresh) for path in fresh.rglob("*_pb2.py*")) == GENERATED


@pytest.mark.parametrize("path", GENERATED, ids=str)
def test_a_module_is_what_its_proto_file_makes(fresh, path):
    assert (ROOT / path).read_text() == (fresh / path).read_text(), "run `make protocol`"


def test_the_extra_allows_no_protobuf_older_than_the_generated_code(fresh):
    said = next(line for line in (ROOT / GENERATED[0]).read_text().splitlines() if "Protobuf Python Version" in line)
    assert f'"protobuf>={said.rsplit(" ", 1)[1]}"' in (ROOT / "pyproject.toml").read_text()
    assert Version(said.rsplit(" ", 1)[1]) <= Version(version("protobuf"))


def test_packages_do_not_clash_with_those_of_envoy_and_grpc():
    packages = {ext_proc_pb2.DESCRIPTOR.package, health_pb2.DESCRIPTOR.package}
    assert all(package.startswith("warmroute.") for package in packages)
