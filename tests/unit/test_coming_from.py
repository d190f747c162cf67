"""Every feature that docs/coming-from.md lists is shown by a test."""

import re
from pathlib import Path

from tests.unit.test_documentation import existing_tests

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
TESTS = {
    "A1": ("test_enough_messages_close_the_open_episode",),
    "A2": ("test_an_episode_is_sealed_when_it_is_full",),
    "A3": ("test_a_topic_shift_does_not_seal_a_short_episode",),
    "A4": ("test_a_topic_shift_seals_an_episode_that_is_long_enough",),
    "A5": ("test_episodes_are_numbered_and_carry_the_end_of_the_one_before",),
    "A6": ("test_every_message_taken_is_in_one_episode_or_pending_and_in_order",),
    "A7": ("test_flows_and_tools_are_unique_in_order_of_first_use",),
    "A8": ("test_sentiment_is_the_populations_over_messages_that_carry_one",),
    "A9": (
        "test_every_text_keeps_to_its_length",
        "test_a_refused_summary_is_asked_for_once_more_with_what_was_wrong",
    ),
    "A10": ("test_fallbacks_are_announced_at_once_and_replaced_everywhere_when_the_llm_answers_again",),
    "A11": ("test_every_message_ends_in_one_stored_and_announced_episode",),
    "A12": ("test_a_slow_conversation_holds_up_no_other_and_keeps_its_own_order",),
    "A13": ("test_a_conversation_is_recalled_by_what_was_said_in_it",),
    "A14": ("test_a_stop_finishes_what_is_begun_so_that_nothing_is_redone",),
    "B1": ("test_turns_are_user_messages_and_all_up_to_the_next",),
    "B2": ("test_tokens_are_those_of_all_pending_messages",),
    "B3": ("test_events_are_every_record_of_the_conversation_tools_included",),
    "B4": (
        "test_they_count_from_the_first_pending_message",
        "test_they_count_from_the_last_summary_once_there_is_one",
    ),
    "B5": ("test_important_content_is_a_message_with_more_characters_than_that_after_stripping",),
    "B6": (
        "test_any_and_all_nest",
        "test_all_loses_no_condition_because_another_was_asked_first",
    ),
    "B7": ("test_a_summary_has_a_thousand_characters_at_most_unless_told_otherwise",),
    "B8": ("test_title_summary_and_the_last_messages",),
    "B9": ("test_focus_points_ask_for_decisions_information_actions_and_context_in_this_order",),
    "B10": ("test_without_it_only_flush_and_silence_close_episodes",),
    "B11": ("test_it_closes_all_that_is_pending_whatever_its_size",),
    "B12": ("test_what_is_skipped_or_a_repeat_is_counted_by_no_condition",),
    "B13": ("test_every_episode_says_what_it_is_made_of",),
    "B14": ("test_what_was_asked_is_kept_with_the_episode",),
    "B15": (
        "test_12_kilobytes_of_text_close_an_agents_episode",
        "test_one_that_names_an_agent_closes_just_that_agents",
    ),
    "B16": ("test_a_preset_is_chosen_by_name",),
    "B17": ("test_a_batch_that_fails_has_changed_nothing",),
    "B18": ("test_each_episode_is_told_what_was_said_before_in_its_row",),
    "B19": ("test_with_the_last_four_kept_any_conversation_becomes_five_events",),
    "C1": ("test_the_known_thresholds_of_tokens_and_exchanges",),
    "C2": ("test_each_row_but_the_last_ends_where_it_passes_the_limit",),
    "C3": ("test_rows_say_what_their_texts_really_tell_of",),
    "C4": (
        "test_the_plain_preset_asks_for_3_to_5_sentences_in_the_third_person_without_quotes_or_greetings",
        "test_each_text_is_a_question_of_its_own_in_plain_text_and_500_tokens",
    ),
    "C5": ("test_every_episode_goes_into_the_rolling_summary_once_and_in_order",),
    "C6": ("test_a_longer_episode_is_read_in_parts_to_its_end_in_order_and_once",),
    "C7": ("test_a_leaked_control_token_never_grows_the_next_prompt",),
    "C8": ("test_a_wrong_setting_is_named",),
    "C9": ("test_repeats_are_dropped_and_their_offsets_committed",),
    "D1": ("test_the_known_thresholds_of_messages_or_tokens",),
    "D2": ("test_a_tool_call_is_never_cut_from_its_results",),
    "D3": (
        "test_facts_of_the_first_episode_are_still_there_after_fifty",
        "test_an_llm_keeps_facts_of_the_first_episode_for_fifty",
    ),
    "D4": (
        "test_without_a_summary_all_messages_are_there",
        "test_of_ten_thousand_messages_few_are_loaded",
    ),
    "D5": ("test_a_model_for_titles_is_asked_for_them_from_the_summary",),
    "D6": ("test_a_crash_at_any_call_leaves_nothing_undone_or_done_twice",),
    "D7": (
        "test_a_huge_message_loses_its_middle_and_the_summary_says_so",
        "test_what_is_waited_for_and_what_falls_back_is_as_set",
    ),
    "D8": (
        "test_thirty_messages_of_22000_tokens_become_3500_at_most",
        "test_longer_conversations_become_3500_tokens_at_most_too",
    ),
    "D9": (
        "test_parts_that_turn_out_to_be_too_long_are_cut_smaller",
        "test_the_gate_reaches_its_precision_and_recall_on_the_half_that_was_held_out",
    ),
}
"""The tests that show each row of the page."""


def test_each_row_is_shown_by_tests_that_exist() -> None:
    rows = re.findall(r"^\| ([A-D]\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == list(TESTS)
    assert {name for names in TESTS.values() for name in names} - existing_tests() == set()
