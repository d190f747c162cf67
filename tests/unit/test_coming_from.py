"""Every feature that docs/coming-from.md lists is shown by a test."""

import re
from pathlib import Path

from tests.unit.test_documentation import existing_tests

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
TESTS = {
    "A1": ("test_enough_messages_close_the_open_episode",),
    "A2": ("test_full_episode_is_sealed",),
    "A3": ("test_topic_shift_does_not_seal_a_short_episode",),
    "A4": ("test_topic_shift_seals_a_long_enough_episode",),
    "A5": ("test_episodes_are_numbered_and_carry_the_previous_end",),
    "A6": ("test_every_message_is_in_one_episode_or_pending",),
    "A7": ("test_flows_and_tools_are_unique_in_first_use_order",),
    "A8": ("test_sentiment_is_the_populations_over_scored_messages",),
    "A9": (
        "test_every_text_keeps_its_length",
        "test_refused_summary_is_asked_again_with_the_problem",
    ),
    "A10": ("test_fallbacks_are_announced_and_replaced_after_an_outage",),
    "A11": ("test_every_message_ends_in_one_stored_and_announced_episode",),
    "A12": ("test_slow_conversation_blocks_no_other_and_stays_ordered",),
    "A13": ("test_conversation_is_recalled_by_what_was_said",),
    "A14": ("test_stop_finishes_begun_records_so_nothing_repeats",),
    "B1": ("test_turn_is_a_user_message_and_its_answers",),
    "B2": ("test_tokens_condition_counts_all_pending_messages",),
    "B3": ("test_events_condition_counts_every_record",),
    "B4": (
        "test_seconds_count_from_the_first_pending_message",
        "test_seconds_count_from_the_last_summary_if_any",
    ),
    "B5": ("test_important_content_exceeds_a_length_after_stripping",),
    "B6": (
        "test_any_and_all_nest",
        "test_all_condition_does_not_depend_on_order",
    ),
    "B7": ("test_default_summary_has_at_most_a_thousand_characters",),
    "B8": ("test_context_has_title_summary_and_last_messages",),
    "B9": ("test_focus_points_ask_for_four_things_in_order",),
    "B10": ("test_without_a_trigger_only_flush_and_silence_close",),
    "B11": ("test_flush_closes_all_pending_whatever_its_size",),
    "B12": ("test_skipped_and_repeated_messages_are_not_counted",),
    "B13": ("test_every_episode_names_its_source",),
    "B14": ("test_episode_stores_the_prompt_version_used",),
    "B15": (
        "test_12_kilobytes_of_text_close_an_agents_episode",
        "test_flush_of_an_agent_closes_that_agents_messages",
    ),
    "B16": ("test_preset_is_chosen_by_name",),
    "B17": ("test_failed_batch_changes_nothing",),
    "B18": ("test_each_episode_sees_its_rows_earlier_text",),
    "B19": ("test_preset_of_four_kept_messages_gives_five_events",),
    "C1": ("test_preset_for_tokens_and_exchanges_has_known_thresholds",),
    "C2": ("test_each_row_but_the_last_ends_past_the_limit",),
    "C3": ("test_rows_name_the_episodes_they_tell_of",),
    "C4": (
        "test_plain_preset_asks_for_three_to_five_sentences",
        "test_each_plain_text_is_a_separate_question",
    ),
    "C5": ("test_every_episode_enters_the_rolling_summary_once",),
    "C6": ("test_longer_episode_is_read_once_in_ordered_parts",),
    "C7": ("test_leaked_control_token_never_grows_the_next_prompt",),
    "C8": ("test_wrong_setting_is_named",),
    "C9": ("test_repeats_are_dropped_and_their_offsets_committed",),
    "D1": ("test_preset_for_messages_or_tokens_has_known_thresholds",),
    "D2": ("test_tool_call_is_never_separated_from_its_results",),
    "D3": (
        "test_facts_of_the_first_episode_survive_fifty_more",
        "test_llm_keeps_facts_of_the_first_episode_for_fifty",
    ),
    "D4": (
        "test_context_without_a_summary_has_all_messages",
        "test_few_of_ten_thousand_messages_are_loaded",
    ),
    "D5": ("test_title_model_gets_the_summary",),
    "D6": ("test_crash_at_any_call_leaves_nothing_undone_or_repeated",),
    "D7": (
        "test_huge_message_loses_its_middle_and_says_so",
        "test_fallback_or_waiting_follows_the_setting",
    ),
    "D8": (
        "test_thirty_long_messages_fit_into_3500_tokens",
        "test_longer_conversations_fit_into_3500_tokens",
    ),
    "D9": (
        "test_parts_that_prove_too_long_are_cut_smaller",
        "test_gate_reaches_its_precision_and_recall_held_out",
    ),
}
"""The tests that show each row of the page."""


def test_each_row_names_existing_tests() -> None:
    rows = re.findall(r"^\| ([A-D]\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == list(TESTS)
    assert {name for names in TESTS.values() for name in names} - existing_tests() == set()
