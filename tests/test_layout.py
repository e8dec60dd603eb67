"""The folders and classes of the product stay small."""

from docs.build.size import MOST_LARGE_CLASSES, MOST_MODULES, PRODUCT, files, large_classes, narrow_folders


def test_no_folder_has_more_modules_than_a_reader_can_hold():
    folders = narrow_folders(files(*PRODUCT))
    assert {name: count for name, count in folders.items() if count > MOST_MODULES} == {}


def test_few_classes_have_many_methods():
    found = list(large_classes(files(*PRODUCT)))
    assert len(found) <= MOST_LARGE_CLASSES, found
