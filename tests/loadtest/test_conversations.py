from loadtest.workload.conversations import Shape, generate


def test_equal_seeds_give_equal_conversations():
    shape = Shape(conversations=6)
    assert generate(shape, 1) == generate(shape, 1)
    assert generate(shape, 1) != generate(shape, 2)


def test_conversations_start_in_order_and_carry_their_document_once():
    conversations = generate(Shape(conversations=8, turns=3), 0)
    starts = [conversation.start_s for conversation in conversations]
    assert starts == sorted(starts)
    for conversation in conversations:
        assert conversation.message(0)["content"].startswith("File ")
        assert conversation.message(1)["content"] == conversation.turns[1].question
        assert len(conversation.turns) == 3


def test_some_documents_are_discussed_more_than_once():
    conversations = generate(Shape(conversations=40, shared_documents=0.5), 0)
    assert len({conversation.document for conversation in conversations}) <= 20
