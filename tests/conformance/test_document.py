"""The conformance page says what the tests show, no more and no less."""

import pytest
from tests.conformance.document import PAGE, cited, page
from tests.conformance.statements import NOT_SHOWN, STATEMENTS


@pytest.mark.parametrize("of", [5, 4])
def test_tests_cite_statements_that_exist(of):
    assert sorted(set(cited(of)) - set(STATEMENTS[of])) == []


@pytest.mark.parametrize("of", [5, 4])
def test_every_statement_has_a_test_or_a_reason_for_none(of):
    assert sorted(set(STATEMENTS[of]) - set(cited(of)) - set(NOT_SHOWN[of])) == []


@pytest.mark.parametrize("of", [5, 4])
def test_no_reason_is_given_where_there_is_a_test(of):
    assert sorted(set(NOT_SHOWN[of]) & set(cited(of))) == []


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python -m tests.conformance.document"
