"""What the first version has to do, as sentences, each tied to the tests that hold it.

A requirement names its tests (`file::test`, from `tests/` on), or a test names the requirement: a field case by its number in
the test's name or docstring (`test_rounds_add_up_B078`), any other by its id in the docstring. `test_requirements.py` sees
to it that no requirement is without a test, and that no test names a requirement that is not here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Requirement:
    """One behaviour, and where it is asked for: `OpenAI API`, `blueprint invariant N`, `contract`, or `field case`."""

    id: str
    sentence: str
    source: str
    tests: tuple[str, ...] = ()


def _field_case(number: int, sentence: str, *tests: str) -> Requirement:
    return Requirement(f"B{number:03}", sentence, "field case", tests)


REQUIREMENTS: tuple[Requirement, ...] = (
    # --- The protocol ---
    Requirement(
        "R-sdk-python",
        "The OpenAI Python SDK works unmodified: plain, streamed, typed stream helper, client tools, errors as its own classes.",
        "OpenAI API",
        (
            "e2e/test_openai_python.py::test_chat_is_answered_by_a_tool_and_typed",
            "e2e/test_openai_python.py::test_stream_needs_no_guard_and_joins_to_the_plain_answer",
            "e2e/test_openai_python.py::test_typed_stream_helper_accumulates_the_answer",
            "e2e/test_openai_python.py::test_client_tool_makes_its_round_trip",
            "e2e/test_openai_python.py::test_bad_request_names_its_field",
            "e2e/test_openai_python.py::test_rate_limit_of_the_upstream_reaches_the_sdk_with_its_time",
        ),
    ),
    Requirement(
        "R-sdk-node",
        "The OpenAI Node SDK works unmodified, its stream helper included.",
        "OpenAI API",
        (
            "e2e/test_openai_node.py::test_node_sdk_talks_to_the_shipped_gateway",
            "e2e/test_openai_node.py::test_node_sdk_raises_when_a_stream_breaks_off",
        ),
    ),
    Requirement(
        "R-responses",
        "The Responses API is served on the same turn: every field and event of OpenAI's schemas, tools of both sides, refusals, "
        "reasoning, cut answers, failures before and in the stream.",
        "OpenAI API",
        (
            "api/test_responses.py::test_text_becomes_a_message_behind_the_instructions",
            "api/test_responses.py::test_stream_has_every_event_in_order",
            "api/test_responses.py::test_tools_of_every_kind_are_offered_or_left_out_and_said",
            "api/test_responses.py::test_tools_of_the_gateway_are_items_that_it_ran_itself",
            "api/test_responses.py::test_cut_answer_is_incomplete",
            "api/test_responses.py::test_refusal_is_a_part_of_its_own",
            "api/test_responses.py::test_reasoning_is_shown_and_carried",
            "api/test_responses.py::test_failure_before_the_first_event_is_an_http_error",
            "api/test_responses.py::test_failure_in_mid_stream_is_told_and_kept",
            "chat/test_responses_codec.py::test_what_cannot_be_read_is_refused_by_name",
            "chat/test_responses_codec.py::test_whatever_is_read_is_a_conversation_that_strict_servers_take",
            "e2e/test_spec_check.py::test_demo_passes_every_check_of_responses",
        ),
    ),
    Requirement(
        "R-responses-stored",
        "Responses and conversations are kept, continued and deleted, by their owner alone.",
        "contract",
        (
            "api/test_responses_stored.py::test_response_is_retrieved_as_it_was_given",
            "api/test_responses_stored.py::test_previous_response_brings_its_whole_history_but_not_its_instructions",
            "api/test_responses_stored.py::test_conversation_keeps_what_was_said",
            "api/test_responses_stored.py::test_owners_see_their_own_alone",
            "api/test_responses_stored.py::test_what_is_not_to_be_kept_is_not",
        ),
    ),
    Requirement(
        "R-responses-resume",
        "A client that is cut off again and again has every event of a stream once and in order, from any process.",
        "contract",
        (
            "e2e/test_responses_sdk.py::test_sdk_that_is_cut_off_fifty_times_has_every_event_once",
            "api/test_responses_stored.py::test_client_that_is_cut_off_has_every_event_once_and_in_order",
            "api/test_responses_edges.py::test_response_is_followed_through_another_process",
            "api/test_responses_edges.py::test_events_up_to_any_moment_say_what_the_items_were_then",
            "e2e/test_runs.py::test_a_streamed_response_of_a_killed_process_says_so_to_whoever_comes_back",
            "api/test_responses_background.py::test_run_that_was_cut_off_goes_on_behind_the_events_it_has",
        ),
    ),
    Requirement(
        "R-responses-background",
        "A background response outlives its request and its process; `cancelled` is told once it is true.",
        "contract",
        (
            "api/test_responses_background.py::test_background_response_is_queued_and_found_when_it_is_made",
            "api/test_responses_background.py::test_client_that_leaves_a_background_stream_ends_nothing",
            "api/test_responses_background.py::test_background_response_is_cancelled_and_says_so_when_it_is_true",
        ),
    ),
    Requirement(
        "R-responses-clients",
        "OpenAI's SDKs for Python and Node, their helpers, and Codex CLI as it was recorded speak Responses unmodified.",
        "OpenAI API",
        (
            "e2e/test_responses_sdk.py::test_typed_stream_helper_accumulates_the_response",
            "e2e/test_responses_sdk.py::test_parsed_response_is_an_object",
            "e2e/test_responses_sdk.py::test_node_sdk_speaks_responses_with_the_shipped_gateway",
            "e2e/test_responses_sdk.py::test_codex_is_answered_as_it_was_recorded",
            "chat/test_responses_codec.py::test_every_recorded_request_is_read",
        ),
    ),
    Requirement(
        "R-langchain",
        "LangChain works unmodified: invoke, stream, bound tools.",
        "OpenAI API",
        (
            "e2e/test_langchain.py::test_invoke_answers_with_usage",
            "e2e/test_langchain.py::test_stream_joins_to_the_answer_of_invoke",
            "e2e/test_langchain.py::test_bound_tools_make_their_round_trip",
        ),
    ),
    Requirement(
        "R-unknown-fields",
        "Fields that the gateway does not know travel to the backend as they came.",
        "OpenAI API",
        (
            "chat/test_codec.py::test_unknown_fields_travel_byte_for_byte",
            "e2e/test_openai_python.py::test_unknown_fields_reach_the_upstream_untouched",
        ),
    ),
    Requirement(
        "R-roles-and-parts",
        "Content is a string or parts; roles are system, developer, user, assistant and tool.",
        "OpenAI API",
        (
            "e2e/test_openai_python.py::test_content_parts_and_developer_role_are_understood",
            "e2e/test_openai_python.py::test_parts_and_roles_reach_the_upstream_as_they_were_sent",
            "chat/test_codec.py::test_requests_of_real_clients_are_read_and_their_messages_sent_as_they_came",
        ),
    ),
    Requirement(
        "R-field-named",
        "A bad request is an OpenAI error body whose `param` names the field.",
        "OpenAI API",
        (
            "chat/test_codec.py::test_fault_names_its_field_as_openai_does",
            "api/test_endpoints.py::test_what_does_not_exist_is_an_openai_error_with_the_usual_headers",
        ),
    ),
    Requirement(
        "R-one-stream",
        "A stream has one id, one model, one role chunk, one finish reason and one [DONE], however it came from upstream.",
        "OpenAI API",
        (
            "chat/test_relay.py::test_any_mix_of_chunks_is_one_answer_to_the_client",
            "turn/test_stream.py::test_inner_rounds_are_one_stream_with_one_role_and_no_end_B076",
            "e2e/test_acceptance.py::test_parallel_calls_cut_anywhere_give_one_clean_stream",
        ),
    ),
    Requirement(
        "R-plain-is-streamed",
        "The plain answer of a turn equals its stream, joined.",
        "OpenAI API",
        ("turn/test_alike.py::test_whole_answer_equals_the_joined_stream",),
    ),
    Requirement(
        "R-schema",
        "What backends answer, plain or streamed, reaches the client as OpenAI's schemas require it.",
        "OpenAI API",
        (
            "chat/test_normalise.py::test_answers_of_real_servers_become_what_the_schema_requires",
            "chat/test_normalise.py::test_streams_of_real_servers_become_what_the_schema_requires",
        ),
    ),
    Requirement(
        "R-spec-check",
        "The published black-box check of chat completions passes on every kind of backend.",
        "OpenAI API",
        (
            "e2e/test_spec_check.py::test_demo_passes_every_chat_check",
            "e2e/test_spec_check.py::test_recorded_llama_cpp_passes_every_chat_check_but_calls_it_never_made",
            "e2e/test_spec_check.py::test_provider_behind_litellm_passes_every_chat_check",
        ),
    ),
    Requirement(
        "R-functions",
        "The older form of calls makes its round trip through backends that know only the newer one.",
        "OpenAI API",
        ("e2e/test_wire_cases.py::test_older_form_of_calls_makes_its_round_trip",),
    ),
    Requirement(
        "R-lanes",
        "Both stream lanes read every recorded stream the same, however it is framed and cut.",
        "OpenAI API",
        (
            "chat/test_lanes.py::test_no_cut_changes_what_is_read_of_any_recording",
            "chat/test_lanes.py::test_both_lanes_hear_the_same_of_every_recording_however_it_is_written",
        ),
    ),
    Requirement(
        "R-parameters",
        "Request fields are renamed or left out only where the configuration says so.",
        "contract",
        ("backends/test_native_quirks.py::test_fields_are_renamed_only_where_the_configuration_says_so",),
    ),
    Requirement(
        "R-nothing-lost",
        "Behind litellm every field, kind of content and tool reaches the provider, or is refused by name.",
        "contract",
        (
            "backends/test_litellm_losses.py::test_every_field_of_the_published_schema_is_tried",
            "backends/test_litellm_losses.py::test_every_field_reaches_the_provider_or_is_refused_by_name",
            "backends/test_litellm_losses.py::test_every_kind_of_content_reaches_the_provider_or_is_refused_by_name",
            "backends/test_litellm_losses.py::test_every_tool_reaches_the_provider_or_is_refused_by_name",
            "backends/test_litellm_losses.py::test_every_choice_of_tools_reaches_the_provider_or_is_refused_by_name",
        ),
    ),
    Requirement(
        "R-nothing-fetched",
        "What a client names in a message is never fetched by the gateway for a provider.",
        "blueprint invariant 8",
        ("backends/test_litellm_losses.py::test_nothing_that_a_client_names_is_fetched",),
    ),
    Requirement(
        "R-litellm-rounds",
        "Turns with tools and sealed thoughts work in the wire formats of Anthropic, Azure, Bedrock and Gemini, read by their own SDKs' types.",
        "OpenAI API",
        (
            "backends/test_litellm_rounds.py::test_a_turn_with_tools_and_thoughts_is_one_answer",
            "backends/test_litellm_rounds.py::test_no_secret_of_a_provider_is_shown_anywhere_B013",
            "backends/test_litellm_dialects.py::test_a_stream_cut_anywhere_is_never_a_whole_answer",
            "backends/test_litellm_dialects.py::test_an_error_keeps_status_and_words",
        ),
    ),
    Requirement(
        "R-litellm-prepared",
        "litellm is imported once, without a call, where a configuration needs it.",
        "contract",
        ("backends/test_litellm.py::test_what_needs_litellm_is_prepared_when_it_is_taken_over",),
    ),
    Requirement(
        "R-published-schemas",
        "The schemas that tests check with are OpenAI's, and all that servers were recorded with passes them behind the gateway.",
        "OpenAI API",
        (
            "backends/test_openai_schemas.py::test_the_schemas_that_tests_check_with_are_the_published_ones",
            "backends/test_openai_schemas.py::test_everything_that_servers_were_recorded_with_passes_behind_the_gateway",
        ),
    ),
    Requirement(
        "R-loose-types",
        "Servers that take types lightly are understood, and an error in any form never looks like an end.",
        "OpenAI API",
        (
            "backends/test_native_quirks.py::test_types_that_are_taken_lightly_are_put_right",
            "backends/test_native_quirks.py::test_error_that_is_an_event_of_its_own_never_looks_like_an_end",
        ),
    ),
    Requirement(
        "R-stream-options",
        "Options of a stream travel to the server; usage alone is the gateway's.",
        "OpenAI API",
        (
            "chat/test_parameters.py::test_options_of_a_stream_travel_but_for_usage_which_is_the_gateway_s",
            "backends/test_native_quirks.py::test_options_of_a_stream_reach_the_server_which_may_refuse_them",
        ),
    ),
    Requirement(
        "R-bounded-answers",
        "What an upstream sends is bounded by what it becomes: inflated bytes, events, tool calls.",
        "blueprint invariant 8",
        (
            "backends/test_native_quirks.py::test_compressed_answer_is_bounded_by_what_it_becomes",
            "backends/test_native_quirks.py::test_calls_without_end_are_given_up",
            "chat/test_lanes.py::test_event_without_end_is_given_up_at_its_bound",
        ),
    ),
    Requirement(
        "R-slow-clients",
        "A client that never finishes its request is let go; one that offers an upgrade is answered.",
        "blueprint invariant 1",
        (
            "api/test_connection.py::test_client_that_never_finishes_is_let_go",
            "api/test_connection.py::test_client_that_drips_is_let_go",
            "api/test_connection.py::test_offered_upgrade_costs_no_body",
        ),
    ),
    Requirement(
        "R-fragments",
        "Fragments of tool calls reassemble however they were cut and interleaved.",
        "OpenAI API",
        ("chat/test_deltas.py::test_fragments_cut_and_interleaved_in_any_way_reassemble",),
    ),
    Requirement(
        "R-framing",
        "Server-sent events are read however the bytes were cut.",
        "OpenAI API",
        ("chat/test_sse.py::test_any_cutting_of_any_events_gives_the_same_payloads",),
    ),
    Requirement(
        "R-models",
        "The model list shows the names this key may ask for, and each can be retrieved.",
        "OpenAI API",
        ("e2e/test_openai_python.py::test_models_are_listed_and_retrieved",),
    ),
    Requirement(
        "R-client-leaves",
        "A client that goes away ends its upstream call within a second.",
        "blueprint invariant 1",
        (
            "e2e/test_openai_python.py::test_client_that_leaves_ends_the_upstream_call_within_a_second",
            "backends/test_native.py::test_cancelling_the_caller_aborts_the_upstream_within_a_second",
        ),
    ),
    # --- Running it ---
    Requirement(
        "R-run",
        "`make run` serves without key, configuration or download, answers within 5 s of its start, and the printed line works.",
        "contract",
        (
            "e2e/test_make_run.py::test_first_request_is_answered_within_5_s_of_the_start",
            "e2e/test_make_run.py::test_printed_curl_line_answers",
        ),
    ),
    Requirement(
        "R-light-start",
        "Import, `--help` and a keyword-routed request load neither torch, sentence-transformers nor litellm.",
        "contract",
        (
            "test_house.py::test_starting_loads_no_heavy_library",
            "e2e/test_make_run.py::test_keyword_routed_request_loads_no_heavy_library_and_a_signal_ends_the_program_with_0",
        ),
    ),
    Requirement(
        "R-environment-model",
        "BASE_URL, MODEL_NAME and API_KEY make any OpenAI-protocol server the default model without a file being edited.",
        "contract",
        (
            "config/test_loader.py::test_base_url_and_model_name_make_the_default_model",
            "e2e/test_make_run.py::test_three_variables_in_a_file_make_any_server_the_default_model",
        ),
    ),
    Requirement(
        "R-closed-by-default",
        "The gateway is open on this machine alone, and only while no key was ever made.",
        "contract",
        (
            "security/test_keys.py::test_any_key_of_the_configuration_closes_the_gateway",
            "e2e/test_make_run.py::test_open_gateway_for_other_machines_is_refused_with_what_to_do",
        ),
    ),
    Requirement(
        "R-exit-codes",
        "Commands end with 0, 1 for problems, 2 for wrong usage, 3 for what cannot be reached.",
        "contract",
        (
            "e2e/test_make_run.py::test_wrong_usage_ends_with_2",
            "e2e/test_make_run.py::test_check_names_every_problem_with_file_and_line",
            "e2e/test_make_run.py::test_trace_nobody_has_is_a_problem_and_a_gateway_nobody_runs_is_unreachable",
        ),
    ),
    Requirement(
        "R-every-problem",
        "Every mistake in the files is told at once, with file and line; what is not served is refused by name.",
        "contract",
        (
            "config/test_loader.py::test_every_problem_of_every_file_is_told_at_once",
            "config/test_settings.py::test_a_name_that_this_version_does_not_serve_is_refused",
        ),
    ),
    Requirement(
        "R-documented",
        "Every key, variable, header, endpoint, command, error, event and metric is documented, and nothing that is not there.",
        "contract",
        (
            "test_docs.py::test_every_key_of_a_file_is_documented_with_its_default",
            "test_docs.py::test_every_variable_of_the_environment_is_documented",
            "test_docs.py::test_every_endpoint_is_documented",
            "test_docs.py::test_every_header_is_documented_and_no_other",
            "test_docs.py::test_every_command_is_documented_with_every_option",
            "test_docs.py::test_every_error_is_documented_and_no_other",
            "test_docs.py::test_every_event_is_documented_with_its_data",
            "test_docs.py::test_every_metric_is_documented_with_its_labels",
        ),
    ),
    Requirement(
        "R-overhead",
        "A request costs at most 1.9 times the CPU of a bare relay, a stream 1.6 times, and neither a seventh more instructions than it did.",
        "contract",
        (
            "e2e/test_bench_guard.py::test_gateway_uses_hardly_more_cpu_than_a_bare_relay",
            "e2e/test_bench_guard.py::test_request_takes_no_more_instructions_than_it_did",
        ),
    ),
    # --- Routing ---
    Requirement(
        "R-rules-first",
        "Rules decide before meaning, by priority and then by name; meaning before the default.",
        "contract",
        (
            "routing/test_composite.py::test_a_rule_decides_before_meaning_and_without_an_encoder",
            "routing/test_rules.py::test_higher_priority_wins_and_names_break_ties",
        ),
    ),
    Requirement(
        "R-fall-through",
        "An encoder that fails, is slow or still loads means falling through, never an error.",
        "contract",
        (
            "routing/test_composite.py::test_one_broken_space_leaves_the_other_working",
            "routing/test_composite.py::test_no_text_makes_the_router_raise",
        ),
    ),
    Requirement(
        "R-same-decision",
        "A decision is a function of version, text and facts: the order of routes and utterances makes no difference.",
        "blueprint invariant 3",
        (
            "routing/test_composite.py::test_order_of_routes_and_utterances_does_not_matter",
            "routing/test_rules.py::test_order_of_routes_and_keywords_does_not_matter",
            "config/test_loader.py::test_the_digest_follows_what_decides_and_no_secret",
            "config/test_loader.py::test_routes_are_the_same_whatever_files_they_stand_in",
            "e2e/test_semantic.py::test_three_replicas_decide_alike_by_meaning_and_never_by_an_older_version",
        ),
    ),
    Requirement(
        "R-sticky",
        "A conversation stays on its route unless a rule matches or another route is clearly better; no other owner gets it.",
        "contract",
        (
            "e2e/test_sticky.py::test_a_conversation_stays_by_its_session_or_by_what_was_said",
            "e2e/test_sticky.py::test_another_key_or_user_with_the_same_session_is_another_conversation",
            "e2e/test_sticky.py::test_replicas_that_share_a_server_share_conversations",
            "routing/test_sticky.py::test_a_rule_always_wins",
            "routing/test_sticky.py::test_another_route_takes_over_only_if_it_is_clearly_better",
        ),
    ),
    Requirement(
        "R-remote-encoder",
        "A server of embeddings encodes; what is no vector, too long, or of another model never decides.",
        "contract",
        (
            "routing/test_remote_encoder.py::test_vectors_come_in_order_in_batches_and_as_unit_vectors",
            "routing/test_remote_encoder.py::test_what_is_too_long_is_sent_by_its_beginning_and_its_end",
            "routing/test_remote_encoder.py::test_what_is_no_vector_is_refused",
            "routing/test_remote_encoder.py::test_another_model_behind_the_name_is_noticed",
        ),
    ),
    Requirement(
        "R-rules-reference",
        "Rules match as a naive reading of them does, on random rules and texts; normalising is idempotent and never raises.",
        "contract",
        (
            "routing/test_rules.py::test_rules_agree_with_a_naive_reading_of_them",
            "routing/test_rules.py::test_every_assigned_character_bounds_words_as_its_name_says",
            "routing/test_normalise.py::test_normalising_twice_changes_nothing_more",
            "routing/test_normalise.py::test_every_single_code_point_is_idempotent_and_encodable",
        ),
    ),
    Requirement(
        "R-explain",
        "`explain` and POST /v1/route name the route and why, and explaining changes no decision.",
        "contract",
        (
            "e2e/test_make_run.py::test_explain_names_the_route_and_why",
            "routing/test_composite.py::test_explaining_changes_no_decision",
        ),
    ),
    Requirement(
        "R-calibration",
        "Thresholds that were fitted and written down judge what they were fitted for, and are said to be stale otherwise.",
        "contract",
        (
            "routing/test_calibrated.py::test_a_fresh_calibration_judges",
            "routing/test_calibrated.py::test_a_calibration_of_other_utterances_is_stale_and_not_used",
            "commands/test_calibrate.py::test_it_is_missing_then_fresh_then_stale",
            "e2e/test_eval_agrees.py::test_a_stale_calibration_is_said_and_not_used",
        ),
    ),
    Requirement(
        "R-gate",
        "No version serves that sends a line of `routes/eval.jsonl` elsewhere; the one before it goes on.",
        "contract",
        (
            "turn/test_gate.py::test_a_reload_that_breaks_a_line_is_refused_and_the_old_version_serves_on",
            "turn/test_gate.py::test_what_does_not_pass_does_not_start",
        ),
    ),
    Requirement(
        "R-eval-is-live",
        "`eval`, `explain` and `POST /v1/route` decide as requests are decided, cold and warm.",
        "contract",
        (
            "e2e/test_eval_agrees.py::test_eval_decides_as_requests_are_decided_cold_and_warm",
            "e2e/test_eval_agrees.py::test_texts_that_are_encoded_together_are_decided_as_each_alone",
        ),
    ),
    Requirement(
        "R-reload",
        "After a reload answers, no later request is decided by the older version; a bad file never replaces a good one.",
        "blueprint invariant 4",
        (
            "e2e/test_acceptance.py::test_edited_keyword_decides_the_next_request_and_changes_the_version",
            "e2e/test_acceptance.py::test_broken_files_leave_the_old_table_serving_and_every_problem_is_told",
            "config/test_versions.py::test_a_reload_makes_the_next_generation_the_active_one",
            "config/test_versions.py::test_a_refused_reload_leaves_the_old_generation_and_says_why_until_one_succeeds",
            "config/test_versions.py::test_a_generation_in_use_is_closed_after_its_last_user_and_once",
            "config/test_loader.py::test_a_truncated_file_is_refused_and_never_half_a_table",
        ),
    ),
    Requirement(
        "R-check-warns",
        "`check` warns with file and line of rules that never win, words said twice and utterances nearer to another route; offline and strict.",
        "contract",
        (
            "test_check.py::test_warnings_have_file_and_line_and_fail_a_strict_check_alone",
            "test_check.py::test_what_is_not_set_is_a_warning_offline_and_an_error_else",
            "test_check.py::test_utterances_are_compared_by_the_encoder",
            "routing/test_lint.py::test_a_rule_that_is_said_never_to_win_wins_no_text",
        ),
    ),
    Requirement(
        "R-suggest",
        "`suggest` groups rejected queries of traces as candidates for utterances or for the list of what belongs to no route.",
        "contract",
        (
            "test_suggest.py::test_rejected_texts_are_grouped_from_http_and_from_the_database",
            "routing/test_none.py::test_a_text_like_one_of_none_falls_to_the_default_and_says_why",
        ),
    ),
    # --- Tools and the turn ---
    Requirement(
        "R-true-answers",
        "Arithmetic and order questions, in English and Chinese, streamed or not, get true answers that came from tools.",
        "contract",
        (
            "e2e/test_acceptance.py::test_two_questions_of_the_readme_get_true_answers_that_came_from_tools",
            "e2e/test_acceptance.py::test_twenty_more_questions_with_random_numbers_and_orders_get_true_answers",
            "backends/test_demo_truth.py::test_arithmetic_in_words_is_computed_truly",
        ),
    ),
    Requirement(
        "R-replicas",
        "After a reload answers, no later request is decided by the older version on any replica that holds a lease.",
        "blueprint invariant 4",
        (
            "e2e/test_replicas.py::test_no_answer_contradicts_its_version_and_none_is_older_than_the_last_reload",
            "e2e/test_replicas.py::test_a_paused_replica_decides_nothing_by_what_it_knew_when_it_wakes",
            "config/test_replica.py::test_a_replica_that_is_cut_off_refuses_within_its_lease_and_before_a_reload_answers",
        ),
    ),
    Requirement(
        "R-rolling",
        "A rolling update to new files and a rollback leave two replicas ready and lose no request.",
        "contract",
        ("e2e/test_replicas.py::test_a_rolling_update_and_a_rollback_lose_no_request_and_leave_two_ready",),
    ),
    Requirement(
        "R-workers",
        "Workers of one gateway decide by one version and answer as one; one that dies is replaced, and no other request is lost.",
        "contract",
        (
            "e2e/test_workers.py::test_reloads_reach_every_worker_and_whichever_is_asked_answers_for_all",
            "e2e/test_workers.py::test_a_killed_worker_is_replaced_and_the_end_lets_every_request_finish",
            "e2e/test_workers.py::test_workers_and_their_server_end_with_a_supervisor_that_was_killed",
            "e2e/test_workers.py::test_what_keeps_workers_from_starting_is_told_once",
        ),
    ),
    Requirement(
        "R-unproved",
        "A replica that cannot reach the store, or cannot prove the active version, does not become ready.",
        "blueprint invariant 3",
        (
            "config/test_replica.py::test_a_start_without_the_store_is_not_ready_and_becomes_so_when_it_is_back",
            "config/test_replica.py::test_a_replica_with_other_plugins_is_not_ready_and_says_why",
        ),
    ),
    Requirement(
        "R-machine-decides",
        "The state machine, not the model, ends a turn: no state is a trap, and rounds, repeats and failures are limited.",
        "contract",
        (
            "turn/test_state.py::test_no_state_is_a_trap",
            "turn/test_limits.py::test_rounds_are_limited",
            "turn/test_limits.py::test_same_call_with_the_same_result_three_times_is_enough",
            "turn/test_limits.py::test_three_failures_in_a_row_of_one_tool_are_enough",
        ),
    ),
    Requirement(
        "R-parallel-calls",
        "Parallel calls run at the same time, and their results come in the order of the calls.",
        "contract",
        ("tools/test_courier.py::test_results_come_in_the_order_of_the_calls_and_the_calls_run_together",),
    ),
    Requirement(
        "R-arguments-validated",
        "Arguments are validated; what is wrong goes back to the model, field by field; coercion loses nothing.",
        "contract",
        (
            "tools/test_validate.py::test_every_fault_is_named_in_one_message",
            "tools/test_validate.py::test_a_value_is_refused_where_something_would_be_lost",
        ),
    ),
    Requirement(
        "R-never-completed",
        "Arguments that were cut off are never completed and run.",
        "contract",
        ("tools/test_salvage.py::test_an_object_cut_off_anywhere_is_never_executed",),
    ),
    Requirement(
        "R-writing-finishes",
        "Cancelling ends reading tools; a writing tool that has begun finishes.",
        "blueprint invariant 1",
        (
            "tools/test_courier.py::test_cancelling_reaches_a_reading_tool_and_lets_a_writing_one_finish",
            "turn/test_failures.py::test_writing_tool_that_has_started_outlives_its_turn",
        ),
    ),
    Requirement(
        "R-journal-first",
        "An answer is committed before its writing calls start, once; where it cannot be, nothing is run. Who only reads commits nothing.",
        "blueprint invariant 2",
        (
            "turn/test_loop.py::test_answer_is_journalled_before_its_writing_call_starts",
            "turn/test_failures.py::test_failing_journal_stops_the_turn_before_the_tool",
            "turn/test_loop.py::test_turn_that_only_reads_commits_nothing",
            "store/test_contract.py::test_a_step_is_written_once_and_a_batch_wholly_or_not_at_all",
            "store/test_contract.py::test_nobody_reads_another_owners_journal",
        ),
    ),
    Requirement(
        "R-nothing-twice",
        "An effect is made once, whatever is retried, resumed or killed in between; what nobody saw the end of is said to be unknown.",
        "blueprint invariant 2",
        (
            "e2e/test_kill_drill.py::test_killed_at_random_points_every_effect_is_made_once_or_told_as_unknown",
            "e2e/test_repeated_requests.py::test_the_sdk_s_own_retry_gets_the_first_turn_s_answer",
            "e2e/test_repeated_requests.py::test_two_equal_calls_in_one_answer_are_two_effects",
            "tools/test_ledger.py::test_without_a_probe_the_effect_of_a_dead_holder_is_unknown_and_never_made_again",
            "tools/test_ledger.py::test_where_it_cannot_be_begun_nothing_is_made",
            "tools/test_ledger.py::test_a_declared_key_names_one_effect_whatever_turn_and_words_it_comes_in",
            "turn/test_joining.py::test_a_holder_that_gives_no_sign_of_life_loses_the_turn_and_learns_it_before_it_writes",
        ),
    ),
    Requirement(
        "R-repeated-turn",
        "A repeated request waits for its turn, gets its answer or goes on from its journal.",
        "contract",
        (
            "turn/test_joining.py::test_the_turn_of_a_dead_process_is_taken_over_at_once_with_its_rounds",
            "turn/test_joining.py::test_another_process_waits_for_a_living_holder_and_gets_its_answer",
            "turn/test_joining.py::test_without_a_key_the_sdk_s_retry_of_the_same_words_joins",
        ),
    ),
    Requirement(
        "R-effects-settled",
        "Operators see effects, settle what is unknown and run again what did not happen; a turn that asks again is told so.",
        "contract",
        (
            "api/test_effects.py::test_a_connection_that_broke_leaves_an_effect_that_an_operator_settles",
            "api/test_effects.py::test_what_did_not_happen_is_run_again_for_whom_it_was_asked",
            "api/test_effects.py::test_the_command_lists_settles_and_retries",
            "tools/test_ledger.py::test_what_an_operator_said_is_told_to_a_turn_that_asks_again",
        ),
    ),
    Requirement(
        "R-retention",
        "Every kind of record is kept for its time, and none goes before what needs it.",
        "contract",
        ("turn/test_pruner.py::test_each_kind_is_kept_for_its_time",),
    ),
    Requirement(
        "R-pairs",
        "No message list leaves in which a tool call lacks its result, or a result its call.",
        "blueprint invariant 5",
        (
            "chat/test_codec.py::test_every_call_needs_its_result_and_every_result_its_call",
            "chat/test_codec.py::test_history_built_by_the_gateway_is_what_the_strictest_server_takes",
        ),
    ),
    Requirement(
        "R-continuity",
        "Hidden rounds come back byte by byte in every later request, whatever the client does to the form of what it was given; nobody gets another's.",
        "contract",
        (
            "e2e/test_mixed_turns.py::test_a_strict_upstream_sees_one_growing_history_whatever_the_client_was_shown",
            "turn/test_continuity.py::test_a_client_may_write_a_message_otherwise_but_not_another_one",
            "turn/test_continuity.py::test_a_client_may_drop_the_words_beside_its_calls",
            "turn/test_continuity.py::test_ids_that_are_made_from_places_name_nothing",
        ),
    ),
    Requirement(
        "R-sdk-retries",
        "An SDK's own retry gets the first turn's answer, over replicas too; of a request and its retry one writes.",
        "contract",
        (
            "e2e/test_repeated_requests.py::test_the_sdk_s_own_retry_gets_the_first_turn_s_answer",
            "e2e/test_repeated_requests.py::test_the_node_sdk_s_own_retry_gets_the_first_turn_s_answer_plain_and_streamed",
            "turn/test_joining.py::test_a_first_request_that_finds_its_own_retry_writing_writes_nothing",
            "store/test_turn_records.py::test_of_a_request_and_its_retry_one_begins",
        ),
    ),
    Requirement(
        "R-text-models",
        "Models without function calling use tools of both sides, by configuration or once tools were refused; streamed without protocol text, however it is cut.",
        "contract",
        (
            "e2e/test_text_models.py::test_a_model_that_only_writes_text_uses_the_gateway_s_tools",
            "e2e/test_text_models.py::test_tools_of_both_sides_and_the_rounds_behind_them",
            "e2e/test_text_models.py::test_a_model_whose_upstream_refuses_tools_is_asked_in_text_from_then_on",
            "chat/test_react_reader.py::test_however_an_answer_is_cut_the_same_is_read",
            "chat/test_react_reader.py::test_what_a_model_makes_up_behind_its_action_counts_for_nothing",
        ),
    ),
    Requirement(
        "R-mixed",
        "Of calls of both kinds in one answer the registry's are run and the client gets its own; later they stand where they belong.",
        "contract",
        (
            "turn/test_loop.py::test_mixed_calls_run_ours_and_give_the_client_its_own",
            "test_examples.py::test_of_calls_of_both_kinds_ours_are_run_and_the_client_gets_its_own",
        ),
    ),
    Requirement(
        "R-tool-choice",
        "`tool_choice` and `n` decide which tools are offered and what the model must do, as the table about turns says.",
        "OpenAI API",
        (
            "test_examples.py::test_what_a_request_says_of_tools_does_what_the_page_says",
            "turn/test_tool_choice.py::test_choice_of_tools_holds_as_the_table_says_B025",
            "turn/test_tool_choice.py::test_several_answers_have_no_registry_tools_and_the_trace_says_so",
        ),
    ),
    Requirement(
        "R-bounded",
        "Every wait is bounded: the turn, a tool, a backend's first token, its silence.",
        "contract",
        (
            "turn/test_failures.py::test_deadline_ends_a_turn_whose_upstream_hangs",
            "turn/test_failures.py::test_deadline_ends_a_turn_whose_tool_hangs",
            "backends/test_native.py::test_first_token_has_a_bound",
            "backends/test_native.py::test_silence_in_mid_stream_has_a_bound",
            "tools/test_courier.py::test_a_tool_that_does_not_answer_ends_at_its_timeout_even_if_it_ignores_that",
        ),
    ),
    Requirement(
        "R-hooks",
        "Hooks from plugins may change or refuse requests, decisions, tool calls, results and answers, and follow events.",
        "contract",
        (
            "test_examples.py::test_on_request_refuses_and_shortens",
            "test_examples.py::test_on_decision_sends_some_keys_elsewhere",
            "test_examples.py::test_before_tool_changes_arguments_and_asks_again",
            "test_examples.py::test_after_tool_keeps_something_from_the_model",
            "test_examples.py::test_on_answer_adds_and_withholds_streamed_or_not",
            "test_examples.py::test_on_event_follows_turns",
            "turn/test_hooks.py::test_hooks_run_in_order_and_each_sees_what_the_one_before_made",
        ),
    ),
    Requirement(
        "R-backends-alike",
        "OpenAI's protocol, litellm's providers, plugins and the demo are backends; each tells failures in the gateway's own errors.",
        "contract",
        (
            "backends/test_native.py::test_what_is_no_answer_is_an_upstream_error",
            "backends/test_litellm.py::test_errors_are_translated_by_status_and_keep_the_provider_s_words",
            "backends/test_plugin.py::test_every_form_of_answer_serves_whole_and_streamed",
        ),
    ),
    Requirement(
        "R-demo-is-honest",
        "The demo says that it is one, and how to add a real model.",
        "contract",
        ("backends/test_demo.py::test_first_answer_says_that_it_is_a_demo_and_how_to_add_a_model",),
    ),
    Requirement(
        "R-demo-misbehaves",
        "The demo fails on demand as real backends do, and its structured answers meet their schema.",
        "contract",
        (
            "backends/test_demo_misbehaving.py::test_each_misbehaviour_reaches_an_sdk_as_the_error_it_stands_for",
            "backends/test_demo_misbehaving.py::test_structured_answer_is_accepted_by_its_schema",
        ),
    ),
    Requirement(
        "R-answer-cache",
        "Where declared, an equal request of the same version and owner is answered once, and the answer says so.",
        "contract",
        (
            "turn/test_answers.py::test_equal_request_is_answered_once_under_ids_of_its_own",
            "turn/test_answers.py::test_stream_is_given_again_as_a_stream_with_the_same_chunks",
            "turn/test_answers.py::test_owners_share_only_what_is_declared_shared",
            "turn/test_answers.py::test_new_version_forgets_every_answer",
            "turn/test_answers.py::test_turn_with_tools_is_never_given_again",
            "turn/test_answers.py::test_what_went_wrong_is_asked_for_again",
        ),
    ),
    Requirement(
        "R-local-model",
        "A model file is served by a process of its own, which is started again when it dies and ends with the gateway.",
        "contract",
        (
            "backends/test_llamacpp.py::test_server_is_started_once_asked_with_its_own_key_and_ended",
            "backends/test_llamacpp.py::test_server_that_dies_is_started_again_under_another_key",
            "backends/test_llamacpp.py::test_server_ends_when_the_gateway_is_killed",
        ),
    ),
    Requirement(
        "R-tool-retries",
        "A tool is asked again only where that does no harm, and what cannot be reached is left alone for a while.",
        "contract",
        (
            "e2e/test_tool_guards.py::test_only_what_surely_did_nothing_is_sent_again",
            "e2e/test_tool_guards.py::test_a_payment_to_a_closed_port_is_tried_again_until_somebody_listens",
            "e2e/test_tool_guards.py::test_a_server_that_cannot_be_reached_is_left_alone_and_its_errors_are_not_held_against_it",
            "tools/guards/test_breakers.py::test_one_call_is_let_through_after_a_while_and_decides",
        ),
    ),
    Requirement(
        "R-tool-limits",
        "How often and how many at a time a tool is called can be limited, and waiting for it is bounded.",
        "contract",
        (
            "e2e/test_tool_guards.py::test_a_tool_s_own_limit_is_told_to_whoever_would_wait_too_long",
            "tools/guards/test_places.py::test_no_more_calls_at_a_time_than_allowed_and_places_come_free",
        ),
    ),
    Requirement(
        "R-result-shown",
        "A model sees the fields it is meant to see, can read on in what was too long, and may get an extract instead.",
        "contract",
        (
            "e2e/test_tool_guards.py::test_only_the_named_fields_are_shown_and_the_trace_has_all",
            "e2e/test_tool_guards.py::test_a_large_result_stays_json_and_can_be_read_to_its_end",
            "e2e/test_tool_guards.py::test_a_result_is_read_on_by_its_owner_in_its_conversation_and_nowhere_else",
            "e2e/test_tool_guards.py::test_a_long_result_is_condensed_against_the_question_and_can_still_be_read",
            "tools/guards/test_paging.py::test_pages_joined_are_the_whole",
        ),
    ),
    Requirement(
        "R-hook-names",
        "A hook whose name is misspelt refuses its plugin.",
        "contract",
        ("tools/test_python_provider.py::test_a_misspelt_hook_is_a_mistake_with_its_place",),
    ),
    Requirement(
        "R-tool-required",
        "Where a route requires a tool, words alone are no answer.",
        "contract",
        (
            "turn/test_tool_choice.py::test_words_without_a_tool_are_no_answer_where_the_route_requires_one",
            "turn/test_tool_choice.py::test_model_that_never_uses_the_required_tool_is_no_answer_at_all",
        ),
    ),
    Requirement(
        "R-tool-events",
        "Registry calls are shown in a stream to who asks for them, and to nobody else.",
        "contract",
        (
            "api/test_tool_events.py::test_registry_calls_are_shown_to_who_asks_for_them",
            "api/test_tool_events.py::test_registry_calls_are_hidden_from_everybody_else",
            "api/test_tool_events.py::test_sdk_reads_a_stream_with_shown_calls_as_any_other",
        ),
    ),
    Requirement(
        "R-limits-end-turns",
        "A turn that a limit ends gives the best answer so far, a plain statement, and `length`; it is never empty.",
        "contract",
        (
            "turn/test_ending.py::test_tokens_that_leave_no_room_end_the_turn_with_what_was_said",
            "turn/test_ending.py::test_answer_is_never_empty_where_a_limit_ended_the_tools",
            "turn/test_ending.py::test_deadline_in_a_later_round_keeps_what_came_of_the_earlier_ones",
            "e2e/test_turn_cases.py::test_deadline_of_the_client_gives_it_the_best_answer_so_far",
            "e2e/test_turn_cases.py::test_model_that_calls_for_ever_is_stopped_with_a_statement",
        ),
    ),
    Requirement(
        "R-reflecting",
        "A result that failed or is empty is a step of its own, and its reason stands before the model.",
        "contract",
        (
            "turn/test_ending.py::test_empty_result_is_a_reason_to_reflect_and_the_model_is_told",
            "turn/test_ending.py::test_failed_result_is_a_reason_to_reflect_and_the_model_reads_it",
        ),
    ),
    Requirement(
        "R-models-of-a-turn",
        "One model may do the tool work, another answer, and another go on where arguments fail; a turn stays on its backends.",
        "contract",
        (
            "turn/test_models_of_a_turn.py::test_tool_model_does_the_tool_work_and_the_model_answers",
            "turn/test_models_of_a_turn.py::test_answer_model_writes_the_answer",
            "turn/test_models_of_a_turn.py::test_second_failure_of_the_same_arguments_moves_the_turn_to_the_model_named_for_it",
            "turn/test_models_of_a_turn.py::test_turn_stays_on_the_backend_that_answered_in_each_of_its_models",
        ),
    ),
    Requirement(
        "R-hostile-models",
        "Whatever a model writes, what goes upstream is well paired, the turn ends within its limits, and both forms say the same.",
        "blueprint invariant 5",
    ),
    Requirement(
        "R-schema-dialects",
        "A tool's schema goes upstream in the words its server takes, and takes the same values as before.",
        "contract",
        (
            "chat/schemas/test_dialect.py::test_schemas_of_real_clients_take_the_same_values_in_every_dialect",
            "chat/schemas/test_dialect.py::test_no_dialect_refuses_what_a_schema_takes",
            "e2e/test_tool_schemas.py::test_google_is_told_what_litellm_would_lose",
            "e2e/test_tool_schemas.py::test_strict_mode_is_asked_for_where_it_takes_the_same",
            "e2e/test_tool_schemas.py::test_a_turn_that_fails_over_says_its_tools_as_each_server_takes_them",
        ),
    ),
    Requirement(
        "R-offer-grows",
        "Within a thread the offered tools only grow, and keep their order.",
        "contract",
        (
            "e2e/test_offers.py::test_within_a_thread_the_offer_only_grows_and_keeps_its_order",
            "e2e/test_offers.py::test_what_a_request_narrows_is_back_in_the_next",
            "e2e/test_offers.py::test_replicas_know_what_a_thread_was_offered",
        ),
    ),
    Requirement(
        "R-offer-breaker",
        "A tool whose breaker is open is not added to an offer; one that was offered stays and answers an error.",
        "contract",
        (
            "e2e/test_offers.py::test_an_open_breaker_keeps_a_tool_from_new_threads_and_from_no_other",
            "e2e/test_offers.py::test_a_breaker_that_opens_where_all_are_offered_the_same_takes_no_tool_from_a_thread",
        ),
    ),
    Requirement(
        "R-requires",
        "A tool is offered once the tools it requires have succeeded in the thread, by the gateway's own records.",
        "contract",
        (
            "e2e/test_offers.py::test_a_tool_follows_as_soon_as_what_it_requires_has_succeeded",
            "e2e/test_offers.py::test_a_client_s_word_that_something_succeeded_proves_nothing",
            "tools/test_prerequisites.py::test_a_tool_that_could_never_be_offered_is_refused_at_load",
        ),
    ),
    Requirement(
        "R-offer-relevant",
        "Above `tools.max_offered` the tools most relevant to the question are offered, and the trace names them.",
        "contract",
        (
            "e2e/test_offers.py::test_of_too_many_tools_those_that_the_question_is_about_are_offered",
            "routing/test_relevance.py::test_the_router_s_encoder_knows_what_a_question_is_about",
            "routing/test_relevance.py::test_an_encoder_that_fails_is_no_reason_to_offer_nothing",
        ),
    ),
    Requirement(
        "R-tool-lint",
        "`hermes-gateway tools --check` runs self-checks and lint; the shipped tools pass both.",
        "contract",
        (
            "test_cli.py::test_tools_check_tells_what_is_wrong_with_file_and_line",
            "tools/test_lint.py::test_a_first_sentence_is_short_and_says_when",
            "tools/test_lint.py::test_parameters_are_described_and_closed_sets_are_enums",
            "tools/test_lint.py::test_results_are_flat_or_say_what_is_needed_of_them",
            "tools/test_lint.py::test_what_takes_long_is_to_be_a_run",
            "tools/test_lint.py::test_the_shipped_tools_pass",
            "tools/test_self_checks.py::test_a_failing_check_is_told_and_stops_nobody",
        ),
    ),
    Requirement(
        "R-tool-provider",
        "A plugin may bring a source of tools; the guide's example works.",
        "contract",
        (
            "tools/test_brought.py::test_the_guide_s_example_is_a_provider_that_works",
            "tools/test_brought.py::test_what_is_no_provider_is_refused_at_load",
            "tools/test_brought.py::test_a_provider_that_never_ends_is_not_waited_for",
        ),
    ),
    # --- Observing ---
    Requirement(
        "R-trace",
        "What the model asked for, what ran and what came back is in the trace, in order, under one trace id.",
        "blueprint invariant 7",
        (
            "tools/test_courier.py::test_events_tell_what_was_asked_and_what_came_back",
            "observe/test_events.py::test_events_are_numbered_dated_and_told_as_they_happen",
            "observe/test_replay.py::test_a_replay_tells_what_was_asked_decided_run_and_answered",
            "e2e/test_make_run.py::test_trace_replays_an_answered_request",
        ),
    ),
    Requirement(
        "R-no-secret",
        "No stack trace and no secret reaches a client, a log or a trace.",
        "blueprint invariant 8",
        (
            "observe/test_logging.py::test_no_secret_is_in_a_line_however_it_came_there",
            "observe/test_redaction.py::test_every_secret_of_a_configuration_is_known",
            "config/test_loader.py::test_no_secret_is_in_a_message_or_in_the_bundles_text",
            "security/test_keys.py::test_no_key_is_in_the_error",
        ),
    ),
    Requirement(
        "R-error-table",
        "Every error has its own row of status, type and code; in mid-stream it is one frame and the end mark.",
        "blueprint invariant 8",
        (
            "api/test_errors.py::test_every_error_has_its_own_row",
            "api/test_errors.py::test_no_row_answers_422_and_only_a_defect_answers_500",
            "api/test_sse.py::test_failure_in_mid_stream_is_one_error_frame_and_the_end_mark",
            "api/test_chat.py::test_defect_in_mid_stream_ends_as_an_error_without_a_trace",
        ),
    ),
    Requirement(
        "R-headers",
        "Answers carry the contract's headers, errors too have a trace id.",
        "contract",
        (
            "api/test_chat.py::test_plain_answer_carries_the_gateway_s_names_and_headers",
            "test_examples.py::test_endpoints_of_the_page_are_served_with_and_without_a_key",
        ),
    ),
    Requirement(
        "R-closed",
        "Every endpoint but the two probes asks for a key.",
        "contract",
        ("api/test_keys.py::test_every_endpoint_but_the_probes_asks_for_a_key",),
    ),
    Requirement(
        "R-open-once",
        "The gateway is open on this machine alone, while no key was ever made, and never again.",
        "contract",
        (
            "api/test_keys.py::test_the_first_key_by_command_closes_a_running_open_gateway",
            "api/test_keys.py::test_a_reload_that_would_leave_nobody_a_key_is_refused",
            "security/test_keys.py::test_the_first_key_closes_an_open_gateway_and_revoking_the_last_never_opens_it",
        ),
    ),
    Requirement(
        "R-isolation",
        "No kind of record of one owner is found by another, and no table escapes the proof.",
        "blueprint invariant 9",
        (
            "store/test_isolation.py::test_nobody_finds_what_another_owner_has",
            "store/test_isolation.py::test_every_table_is_in_the_matrix_or_belongs_to_nobody",
        ),
    ),
    Requirement(
        "R-counters-alike",
        "Counters in this process and in a shared server answer alike, and spending never passes the budget.",
        "contract",
        (
            "security/test_counters.py::test_both_kinds_answer_alike_whatever_happens_and_spending_never_passes_the_budget",
        ),
    ),
    Requirement(
        "R-unknown-price",
        "An unknown price is shown as unknown and never as zero.",
        "contract",
        ("api/test_limits.py::test_an_unknown_price_is_let_in_or_not_as_configured_and_is_no_zero",),
    ),
    Requirement(
        "R-owners",
        "Nothing stored is readable by another owner, except by administrators.",
        "blueprint invariant 9",
        (
            "api/test_endpoints.py::test_trace_is_shown_to_its_owner_and_to_admins_alone",
            "store/test_contract.py::test_nobody_reads_another_owners_trace",
            "store/test_contract.py::test_a_page_after_somebody_elses_trace_is_empty",
            "chat/test_thread.py::test_equal_conversations_of_two_owners_never_meet",
        ),
    ),
    Requirement(
        "R-writes-behind",
        "Traces are written behind: they cost a turn next to nothing, and what is lost is counted.",
        "contract",
        (
            "observe/test_trace.py::test_a_long_conversation_costs_the_event_loop_a_few_microseconds",
            "observe/test_trace.py::test_a_full_queue_drops_and_counts_and_never_waits",
        ),
    ),
    # --- Failures seen in the field ---
    _field_case(1, "A keyword that begins or ends with a symbol, or is not ASCII, matches."),
    _field_case(2, "Full width, mixed case and doubled spaces make no difference to a rule."),
    _field_case(3, "Content as a list of parts is routed like the same text."),
    _field_case(4, "A prompt longer than the encoder's window is routed, by both of its ends."),
    _field_case(5, "Opposite requests do not pass for each other."),
    _field_case(6, "What is explained is what is decided."),
    _field_case(7, "A threshold of one encoder never judges another's scores."),
    _field_case(8, "Composed and decomposed letters, zero-width characters and the Turkish İ compare equal."),
    _field_case(9, "The upstream's retry-after reaches the client under its own name."),
    _field_case(10, "Fallbacks that lead back are told, and nobody asks for ever."),
    _field_case(11, "Once the client has content, no other backend begins to answer."),
    _field_case(12, "A prompt that does not fit is told apart from other refusals, in many words."),
    _field_case(13, "No provider's key is in an error or a log, in a URL either."),
    _field_case(14, "Access is checked against the name the client used."),
    _field_case(15, "The model list shows what the key can use, aliases among it, and nothing else."),
    _field_case(16, "Whether to try again follows each failure, not the first one."),
    _field_case(17, "`parallel_tool_calls` is not sent where no tools are."),
    _field_case(18, "Deltas without index are told apart."),
    _field_case(19, "Interleaved fragments go to the call of their index."),
    _field_case(20, "A repeated name or id is told once."),
    _field_case(21, "Arguments that arrive as an object, without id and type, are a call."),
    _field_case(22, "A list that was cut is not repaired into a shorter one and run."),
    _field_case(23, "An empty argument string is an empty object."),
    _field_case(24, "An answer with calls ends with `tool_calls`, whatever the upstream said."),
    _field_case(25, "A forced `tool_choice` holds for the first round only."),
    _field_case(26, "An answer with the client's calls alone goes to the client at once."),
    _field_case(27, "Two servers' tools of one name are both reachable, each by a name of its own."),
    _field_case(28, "Any name becomes one that models may call, and no two become one."),
    _field_case(29, "References within a schema are followed."),
    _field_case(30, "A server of tools that dies in mid-call ends that call, and is there for the next."),
    _field_case(31, "A permitted address does not lead to a private one."),
    _field_case(32, "A description of a service reads no other document, and no value leaves its place in a request."),
    _field_case(33, "A link inside the allowed folder does not lead out of it."),
    _field_case(34, "A tool that does not exist is an error the model can mend."),
    _field_case(35, "A failed call of a server's tool never looks like a success, and no result is empty."),
    _field_case(36, "A kept result is found by the same arguments however they are spelt, and an error is never kept."),
    _field_case(38, "A kept result is for its caller alone, unless its tool says that nobody's matters."),
    _field_case(39, "The same call with the same result is told to the model, and ends after the third."),
    _field_case(40, "A blocking tool stalls nobody else."),
    _field_case(
        41,
        "A writing call whose connection broke is not sent again, and told as unknown.",
        "tools/test_courier.py::test_a_writing_tool_whose_connection_broke_is_uncertain_and_is_not_asked_again_B041",
        "e2e/test_repeated_requests.py::test_a_payment_whose_connection_broke_is_made_once_however_often_it_is_asked_for_B041",
    ),
    _field_case(42, "A large result is shortened to valid JSON that says what is missing."),
    _field_case(43, "Headers of the client's request reach neither backend nor tool."),
    _field_case(44, "A tool that changed after it was agreed to is not offered until it is agreed to again."),
    _field_case(45, "A replayed assistant message keeps its `content: null`."),
    _field_case(46, "Explicit nulls in a request count as absent."),
    _field_case(47, "Text that looks like a tool call is text."),
    _field_case(48, "Fields that belong to streams are not in a plain answer."),
    _field_case(49, "What runs after an approval is what was approved, whatever a model would say meanwhile."),
    _field_case(
        50, "A chain that fails is undone in reverse, each step with its own booking; one that can't be is parked."
    ),
    _field_case(51, "What could not be undone is never said to be, whether its tool raised or returned an error."),
    _field_case(52, "A turn that failed and has nothing to undo leaves nothing that anybody would pick up again."),
    _field_case(53, "What waits for approval outlives the process and the client that asked."),
    _field_case(68, "A failure in mid-stream is an error, never a short answer that looks whole."),
    _field_case(69, "A first chunk with empty `choices` is no trouble."),
    _field_case(70, "Usage is sent only to who asked for it."),
    _field_case(71, "However a stream legally ends, the client sees one finish reason and one usage."),
    _field_case(72, "Keep-alive comments are no data."),
    _field_case(73, "Every legal framing of events is read."),
    _field_case(74, "Characters cut between two chunks arrive whole."),
    _field_case(75, "A client that goes away without streaming ends its upstream call too."),
    _field_case(76, "The end of an inner round does not end the client's stream."),
    _field_case(77, "A silent stream is kept open by comments."),
    _field_case(78, "Usage is the sum of all rounds."),
    _field_case(
        81,
        "After a refused reload the gateway shows what serves, not what was refused.",
        "config/test_versions.py::test_a_refused_reload_leaves_the_old_generation_and_says_why_until_one_succeeds",
    ),
    _field_case(82, "A removed route answers no more, and a new one is found."),
    _field_case(83, "A small compressed body does not grow without bound."),
    _field_case(
        84,
        "No pattern of a configuration or a schema stalls the event loop.",
        "tools/test_validate.py::test_a_hostile_pattern_takes_no_longer_than_its_input",
        "routing/test_rules.py::test_patterns_see_normalised_text_and_no_case",
    ),
    _field_case(
        79,
        "Requests that come together cannot spend the same money, on however many replicas; what fails or dies gives it back.",
        "security/test_counters.py::test_money_is_not_set_aside_twice_however_many_ask_at_once_B079",
        "e2e/test_shared_limits.py::test_two_hundred_requests_at_once_never_pass_the_budget_B079",
        "e2e/test_shared_limits.py::test_what_a_killed_replica_had_set_aside_is_free_again_B079",
        "api/test_limits.py::test_a_bound_that_upstreams_may_not_heed_makes_no_request_cheap_B079",
    ),
    _field_case(
        80,
        "A forged address, user or role changes nothing about who is limited.",
        "api/test_limits.py::test_forged_addresses_do_not_reset_the_limiter_B080",
        "api/test_limits.py::test_a_trusted_proxys_right_most_untrusted_hop_is_the_address_B080",
    ),
    _field_case(
        85,
        "No client makes new series of a metric.",
        "observe/test_metrics.py::test_no_client_and_no_model_makes_new_series",
    ),
    _field_case(
        87,
        "A second equal key in a file is refused.",
        "config/test_yaml.py::test_a_second_equal_key_is_refused_with_both_lines",
    ),
    _field_case(
        88,
        "An idempotency key gets the first answer, one execution at a time, and never another body's or caller's.",
        "turn/test_joining.py::test_a_key_with_another_body_is_a_conflict",
        "turn/test_joining.py::test_an_answered_turn_is_told_again_to_who_has_its_key",
    ),
    _field_case(
        89,
        "A key that is blocked, revoked, changed or over is so everywhere within two seconds, whatever its role.",
        "security/test_keys.py::test_an_accepted_key_is_not_accepted_for_longer_while_the_database_is_away_B089",
        "api/test_limits.py::test_a_revoked_key_ends_its_running_turn_at_the_next_round_B089",
        "e2e/test_shared_limits.py::test_a_key_that_ends_on_one_replica_ends_on_the_other_while_streams_run_B089",
        "api/test_keyed_responses.py::test_a_revoked_key_stops_its_waiting_runs_and_an_exchanged_one_does_not_B089",
    ),
    _field_case(
        90,
        "A request that one limit refuses uses up nothing of another.",
        "security/test_counters.py::test_what_one_limit_refuses_costs_nothing_in_the_others_B090",
        "api/test_limits.py::test_a_request_that_one_limit_refuses_uses_up_no_other_B090",
        "api/test_keyed_responses.py::test_a_response_that_limits_refuse_says_what_is_left_B090",
    ),
    # --- Background runs ---
    Requirement(
        "R-runs-pinned",
        "A run keeps to the route it was begun with, by value, and takes no step with tools of another hash (`tool_changed`).",
        "contract",
        (
            "runs/test_chat_runs.py::test_a_run_goes_on_as_it_was_decided_whatever_the_files_say_by_then",
            "runs/test_chat_runs.py::test_a_run_takes_no_step_with_tools_that_are_not_those_it_began_with",
            "api/test_responses_background.py::test_run_that_was_cut_off_goes_on_behind_the_events_it_has",
            "turn/test_joining.py::test_what_decides_a_run_is_recorded_before_anything_else_and_once",
            "turn/test_joining.py::test_who_has_decided_a_run_otherwise_meanwhile_does_not_go_on",
            "turn/test_joining.py::test_a_run_whose_decision_cannot_be_recorded_is_not_begun",
        ),
    ),
    Requirement(
        "R-runs",
        "A background run is recorded, queued, executed by any process, and ends; embedded and over a server alike.",
        "contract",
        (
            "runs/test_engine.py::test_a_run_is_executed_and_its_answer_kept",
            "runs/test_engine.py::test_after_a_restart_unfinished_runs_go_on_without_a_server",
            "runs/test_engine.py::test_high_priority_goes_first",
            "runs/test_engine.py::test_a_key_has_no_more_runs_at_once_than_may_be_and_all_of_them_end",
            "runs/test_engine.py::test_a_delayed_run_is_begun_when_it_is_due_and_not_before",
            "runs/test_engine.py::test_a_full_queue_takes_no_more",
            "runs/test_engine.py::test_without_the_server_no_run_is_taken_on_and_with_it_all_goes_on",
            "runs/test_chat_runs.py::test_an_sdk_asks_for_a_run_polls_it_and_has_the_answer",
            "runs/test_chat_runs.py::test_a_run_is_its_owners_and_administrators_see_all",
            "runs/test_chat_runs.py::test_a_schedule_begins_its_run_once_for_each_time",
            "runs/test_chat_runs.py::test_the_end_of_a_run_is_told_to_webhooks_that_the_sdk_verifies",
        ),
    ),
    Requirement(
        "R-runs-stages",
        "A failed run is begun again from a stage of its own, never from before an effect.",
        "contract",
        (
            "runs/test_stages.py::test_a_run_goes_on_from_the_stage_it_is_told",
            "runs/test_stages.py::test_a_run_does_not_go_back_behind_an_effect",
            "runs/test_stages.py::test_from_the_start_a_run_is_decided_anew_and_from_a_round_it_is_not",
            "runs/test_stages.py::test_a_response_that_failed_is_made_after_all",
            "runs/test_stages.py::test_what_is_recorded_of_a_run_stays_as_long_as_it_may_go_on",
            "store/test_run_records.py::test_a_run_begun_again_keeps_what_is_recorded_up_to_where_it_goes_on",
        ),
    ),
    Requirement(
        "R-run-types",
        "Plugins add types of runs; what no plugin executes is refused when it is asked for, and fails loudly when it is met.",
        "contract",
        (
            "runs/test_tasks.py::test_a_plugins_run_is_asked_for_and_executed_step_by_step",
            "runs/test_tasks.py::test_a_plugins_run_that_was_cut_off_goes_on_behind_its_recorded_steps",
            "runs/test_tasks.py::test_what_no_plugin_executes_is_refused_when_it_is_asked_for",
            "runs/test_tasks.py::test_a_run_whose_plugin_is_gone_fails_loudly_and_goes_on_once_it_is_back",
            "runs/test_tasks.py::test_types_are_for_the_keys_that_may_ask_and_runs_their_owners",
        ),
    ),
    Requirement(
        "R-runs-refused",
        "Background work that nobody could do is refused when it is asked for, in the words of the foreground.",
        "contract",
        ("api/test_background_refused.py::test_refused_in_the_background_as_in_the_foreground",),
    ),
    Requirement(
        "R-runs-chaos",
        "Whoever is killed and whatever the queue forgets: every run ends, no effect is doubled, no recorded step is asked anew.",
        "blueprint invariant 2",
        (
            "e2e/test_chaos_drill.py::test_killed_and_forgotten_every_run_ends_and_no_effect_is_doubled",
            "runs/test_chat_runs.py::test_a_restarted_gateway_goes_on_from_the_last_recorded_step",
            "runs/test_chat_runs.py::test_a_round_of_reading_tools_is_recorded_too",
        ),
    ),
    # --- Long conversations ---
    _field_case(
        54, "Whatever is cut, calls keep their results, and system and last user message stay; or it is refused."
    ),
    _field_case(55, "What cannot shrink enough is cut once more at most, and what does not fit is named."),
    _field_case(56, "A giant result is shortened before anything else is lost; pinned facts stay."),
    _field_case(57, "Tools and images are counted: the larger backend is asked, or the request refused early."),
    _field_case(
        58, "A call that was cut off poisons no later turn of its session: it is valid JSON, and has a result."
    ),
    _field_case(59, "Summaries read parts as what they are: no base64, no thoughts, no Python; a model is asked once."),
    _field_case(60, "A failed turn is left out of its session, and turns of one session come one after the other."),
    _field_case(
        61,
        "What the gateway adds fits strict templates: one system message in front, notes with the last user message.",
    ),
    _field_case(
        62,
        "An emptied queue gets its streams and groups anew; recorded runs are queued again, with few words.",
        "runs/test_engine.py::test_an_emptied_server_loses_no_run_and_says_little",
        "runs/test_engine.py::test_a_lost_stream_is_made_anew",
        "runs/test_queue.py::test_a_queue_that_was_emptied_says_so_once_and_works_on",
    ),
    _field_case(
        63,
        "A long run is executed once while its worker lives; who lost it notices and can write nothing of it.",
        "runs/test_engine.py::test_a_long_run_is_executed_once_while_its_worker_lives",
        "runs/test_engine.py::test_a_worker_that_stood_still_notices_that_its_run_is_somebody_elses_B063",
        "e2e/test_runs.py::test_a_worker_that_is_stopped_and_goes_on_makes_no_effect_a_second_time_B063",
        "store/test_run_records.py::test_an_older_epoch_of_the_same_holder_writes_nothing",
        "store/test_run_records.py::test_an_answer_of_the_journal_needs_the_turn_it_belongs_to",
    ),
    _field_case(
        64,
        "Workers killed at any moment leave nothing locked: all runs end, and no key of theirs is left.",
        "runs/test_engine.py::test_workers_that_are_killed_at_random_lose_nothing_and_leave_nothing_locked",
        "runs/test_engine.py::test_a_dead_workers_run_is_taken_over",
        "runs/test_queue.py::test_what_a_dead_reader_took_is_read_by_another",
    ),
    _field_case(
        65,
        "Unreadable messages are dropped, logged and counted; a run that always fails is in the dead list and can begin again.",
        "runs/test_engine.py::test_bad_messages_and_bad_runs_do_not_hold_up_good_ones",
        "runs/test_engine.py::test_a_failed_attempt_is_made_again_and_what_fails_always_is_given_up",
        "runs/test_engine.py::test_a_run_whose_workers_all_die_is_given_up",
        "runs/test_queue.py::test_what_is_no_message_is_handed_out_as_such",
    ),
    _field_case(
        66,
        "Told to stop, a process takes nothing more, lets end what fits, hands back the rest, and ends with 0.",
        "runs/test_engine.py::test_what_fits_the_grace_ends_and_the_rest_is_handed_back_without_costing_a_delivery",
        "e2e/test_runs.py::test_a_rolling_restart_loses_nothing_that_is_in_flight_B066",
    ),
    _field_case(
        67,
        "Cancelling works from any process, reaches the model call and tools, and is told once it is true.",
        "runs/test_engine.py::test_a_running_run_is_cancelled_wherever_it_runs_and_only_told_so_once_it_is_true",
        "runs/test_engine.py::test_a_queued_run_is_cancelled_at_once_and_never_begun",
        "runs/test_engine.py::test_what_has_ended_stays_and_a_foreign_run_is_none",
        "runs/test_chat_runs.py::test_cancelling_ends_the_model_call",
        "runs/test_chat_runs.py::test_cancelling_lets_a_writing_tool_end_and_says_so_only_then",
    ),
)
