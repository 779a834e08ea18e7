"""topics: say which topic names and filters are valid, who subscribed to a topic, and which topics a filter selects."""

from everlog.topics.filter_relations import covers, overlap
from everlog.topics.index import TopicIndex
from everlog.topics.index_builder import build_index, index_parts
from everlog.topics.index_format import CorruptTopicIndex
from everlog.topics.match_cache import MatchCache
from everlog.topics.names import (
    Filter,
    check_topic_name,
    known_filter,
    matches,
    parse_filter,
)
from everlog.topics.postings import Postings
from everlog.topics.sections import SectionCache
from everlog.topics.token_postings import TokenPostings, TokenWalk
from everlog.topics.trie import Subscription, SubscriptionTrie
