import pytest

from router.config.memory import MemoryLimit, memory_limit

GIB = 1 << 30
MEMINFO = f"MemTotal:       {64 * GIB // 1024} kB\nMemFree:        1024 kB\n"
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "34 31 0:31 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
)
UNLIMITED_V1 = "9223372036854771712\n"


@pytest.fixture
def system(tmp_path):
    """Writes the files of a system, and says what the limit is there."""

    def written(files):
        for path, text in {"proc/meminfo": MEMINFO, **files}.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return memory_limit(tmp_path)

    return written


def v2(files, mount=V2_MOUNT, group="0::/system.slice/warmroute.service\n"):
    return {
        "proc/self/mountinfo": mount,
        "proc/self/cgroup": group,
        **{f"sys/fs/cgroup/{path}": text for path, text in files.items()},
    }


def v1(files, mount=V1_MOUNT, group="5:cpu:/elsewhere\n4:memory:/docker/abc\n0::/\n"):
    return {
        "proc/self/mountinfo": mount,
        "proc/self/cgroup": group,
        **{f"sys/fs/cgroup/memory/{path}": text for path, text in files.items()},
    }


def test_cgroup_v2_limits_the_process(system):
    files = v2({"system.slice/warmroute.service/memory.max": f"{GIB}\n", "system.slice/memory.max": "max\n"})
    assert system(files) == MemoryLimit(GIB, "cgroup v2")


def test_a_lower_limit_of_a_group_above_binds(system):
    files = v2({"system.slice/warmroute.service/memory.max": f"{4 * GIB}\n", "system.slice/memory.max": f"{GIB}\n"})
    assert system(files) == MemoryLimit(GIB, "cgroup v2")


def test_a_container_that_sees_its_own_group_as_the_top_is_limited(system):
    assert system(v2({"memory.max": f"{GIB}\n"}, group="0::/\n")) == MemoryLimit(GIB, "cgroup v2")
    mounted = V1_MOUNT.replace("0:32 / ", "0:32 /docker/abc ")
    assert system(v1({"memory.limit_in_bytes": f"{GIB // 2}\n"}, mount=mounted)) == MemoryLimit(GIB // 2, "cgroup v1")


def test_a_group_named_from_outside_falls_back_to_the_top_that_is_seen(system):
    assert system(v2({"memory.max": f"{GIB}\n"}, group="0::/../../other\n")) == MemoryLimit(GIB, "cgroup v2")
    mounted = V2_MOUNT.replace("0:26 / ", "0:26 /pods/one ")
    assert system(v2({"memory.max": f"{GIB}\n"}, mount=mounted)) == MemoryLimit(GIB, "cgroup v2")


def test_cgroup_v1_limits_the_process_at_any_level(system):
    files = {"docker/abc/memory.limit_in_bytes": UNLIMITED_V1, "docker/memory.limit_in_bytes": f"{2 * GIB}\n"}
    assert system(v1(files)) == MemoryLimit(2 * GIB, "cgroup v1")


def test_the_lower_of_both_versions_binds(system):
    both = v1({"docker/abc/memory.limit_in_bytes": f"{2 * GIB}\n"})
    both["proc/self/mountinfo"] += "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    both["sys/fs/cgroup/unified/memory.max"] = f"{GIB}\n"
    assert system(both) == MemoryLimit(GIB, "cgroup v2")


@pytest.mark.parametrize("value", ["max\n", "", "-1\n", f"{64 * GIB}\n", UNLIMITED_V1, "9" * 30 + "\n"])
def test_no_limit_below_the_machines_memory_means_half_of_it(system, value):
    files = v2({"system.slice/warmroute.service/memory.max": value})
    assert system(files) == MemoryLimit(32 * GIB, "half of RAM")


def test_half_of_ram_without_control_groups(system):
    assert system({}) == MemoryLimit(32 * GIB, "half of RAM")
    assert system({"proc/self/mountinfo": "odd\n36 35 98:0 / /x rw - ext4\n", "proc/self/cgroup": "odd\n"}) == (
        MemoryLimit(32 * GIB, "half of RAM")
    )


def test_names_with_escaped_characters_are_read(system):
    mounted = V2_MOUNT.replace("0:26 / ", r"0:26 /machine\134x2dqemu\040a ")
    files = v2({"inner/memory.max": f"{GIB}\n"}, mount=mounted, group="0::/machine\\x2dqemu a/inner\n")
    assert system(files) == MemoryLimit(GIB, "cgroup v2")


def test_a_system_that_says_nothing_has_no_known_limit(tmp_path):
    assert memory_limit(tmp_path) is None


def test_this_system_has_a_memory_limit():
    limit = memory_limit()
    assert limit is not None and limit.size_bytes > 0
