"""Tests that take about two seconds of a processor or more, beside what they share with others.

They are slow; of a parametrized one, whose cases are alike, the first case stays among the fast tests. A test that is
slow by its nature has the mark itself.
"""

# File in `tests` -> its tests.
LONG = {
    "baselines/test_baselines.py": [
        "test_a_loss_of_the_user_is_never_taken_for_ours",
        "test_counts_beside_a_loss_of_the_user_are_targets",
        "test_gap_histories",
    ],
    "commands/test_command_line.py": [
        "test_a_process_of_its_own",
    ],
    "comparison/test_change_of_fixed_arrays.py": [
        "test_e1_is_that_of_the_parameters_at_the_statistics_of_b",
    ],
    "comparison/test_compare_formats.py": [
        "test_leaves_of_an_equinox_model",
        "test_msgpack_of_a_linen_model",
    ],
    "comparison/test_compare_inputs.py": [
        "test_many_outputs_are_reduced_unless_asked_for",
    ],
    "comparison/test_compared_outputs.py": [
        "test_positions_are_rows_of_the_kernel",
    ],
    "comparison/test_fixed_arrays_of_the_sides.py": [
        "test_a_side_without_statistics_beside_one_with_its_own",
        "test_statistics_of_a_batch_are_taken_at_the_parameters_of_each_side",
        "test_statistics_that_only_the_model_has",
        "test_the_state_of_equinox_on_disk",
    ],
    "comparison/test_held_out.py": [
        "test_what_is_measured_of_held_out_examples",
    ],
    "comparison/test_kernels_alone.py": [
        "test_a_checkpoint_beside_a_step_of_a_run",
        "test_a_model_that_is_dead_is_dead_beside_another_one",
        "test_held_out_examples_of_two_models",
        "test_kernels_of_two_models",
        "test_models_of_two_structures_need_no_pair",
        "test_reduced_kernels_of_a_run",
        "test_two_steps_of_a_run",
        "test_variables_of_two_models",
    ],
    "comparison/test_leaf_traces.py": [
        "test_a_joint_batch_is_taken_whole",
        "test_shares_are_squares_of_the_jacobian",
    ],
    "comparison/test_optimizer_margin.py": [
        "test_a_dictionary_with_a_state_beside_a_plain_function",
        "test_adam_is_the_dense_computation_by_hand",
        "test_an_empty_state_needs_none",
        "test_an_optimizer_that_is_not_recognised_has_no_margin",
        "test_both_rates_are_shown",
    ],
    "comparison/test_stored_comparisons.py": [
        "test_each_comparison_is_a_row",
    ],
    "comparison/test_stored_probe.py": [
        "test_examples_are_stored_once",
    ],
    "comparison/test_track.py": [
        "test_a_run_is_continued_where_it_was",
        "test_another_model_or_loss_of_the_user_is_refused",
        "test_checkpoints_that_cannot_be_compared_are_named",
        "test_in_training_mode_what_is_frozen_is_that_of_each_checkpoint",
        "test_it_shows_itself",
        "test_models_of_several_functions_are_refused",
        "test_overlap_is_of_modes_that_are_resolved",
        "test_pairs_that_go_one_at_a_time_for_memory_are_the_same",
        "test_the_model_is_traced_once_for_the_run",
        "test_what_was_finished_before_an_error_stays",
    ],
    "comparison/test_track_follow.py": [
        "test_new_checkpoints_are_measured_until_training_says_that_it_ended",
    ],
    "comparison/test_verdict.py": [
        "test_a_network_with_dead_units_is_dead_before_all_else",
        "test_equal_outputs_that_parameters_could_tell_apart_have_collapsed",
    ],
    "engine/test_blocks.py": [
        "test_parameters_chosen_by_the_shape_of_x",
    ],
    "engine/test_caches.py": [
        "test_operators_are_cleared",
        "test_owners_of_methods_are_let_go",
        "test_programs_go_with_their_function",
    ],
    "engine/test_channels_last.py": [
        "test_a_kernel_is_what_it_was",
        "test_derivatives_inside_control_flow",
        "test_every_layout",
    ],
    "engine/test_constants.py": [
        "test_constants_are_computed_as_outside",
        "test_examples_that_interact_are_found_while_tracing",
    ],
    "engine/test_float32_on_cpu.py": [
        "test_convolutions_with_group_norm",
        "test_kernel_of_a_normalised_network",
        "test_scanned_blocks_with_rms_norm",
    ],
    "engine/test_jacobian_structure.py": [
        "test_general_leaves_are_the_ones_known",
        "test_what_does_not_depend_on_the_example_is_kept_once",
    ],
    "engine/test_no_room.py": [
        "test_directions_of_a_million_outputs_are_drawn_in_a_moment",
        "test_many_passes_are_said_once",
    ],
    "engine/test_ntk.py": [
        "test_block_kernel_between_two_functions",
        "test_interaction_that_is_multiplied_by_zero_for_now",
        "test_layers_that_begin_as_zero_and_sums_over_the_batch_with_weight_zero_are_let_through",
        "test_leaves_have_the_dtype_of_the_kernel_with_x64_on",
        "test_random_projections_are_unbiased_and_know_their_error",
        "test_scanned_layers_are_split_by_layer",
    ],
    "engine/test_ntk_errors.py": [
        "test_the_budget_named_is_enough",
    ],
    "engine/test_random_networks.py": [
        "test_random_networks",
    ],
    "engine/test_streams.py": [
        "test_parameters_of_streams_are_let_go",
        "test_steps_and_pieces_change_nothing",
        "test_tiles_of_pieces_change_nothing",
    ],
    "engine/test_transformed.py": [
        "test_ensembles_of_parameters_and_of_batches",
        "test_gradient_through_the_kernel",
    ],
    "kernel/test_effective_ranks.py": [
        "test_zero_eigenvalues_count_nothing_and_stay_differentiable",
    ],
    "kernel/test_handed_in.py": [
        "test_a_loop_that_nan_would_not_end_and_a_guard_that_it_would_trip",
    ],
    "kernel/test_kernels_show_themselves.py": [
        "test_a_functional_says_whether_examples_interact",
    ],
    "kernel/test_spectrum.py": [
        "test_jit_and_vmap_agree_with_the_host",
    ],
    "linearization/test_backward_only.py": [
        "test_as_without_the_rule",
    ],
    "linearization/test_gap.py": [
        "test_trees_of_outputs_and_keyword_arguments",
        "test_what_a_gap_shows_of_itself",
    ],
    "linearization/test_linearize.py": [
        "test_quadratic_model_against_the_hessian",
    ],
    "linearization/test_linearized_checkpoints.py": [
        "test_one_jvp_and_the_cost_of_a_step",
        "test_post_hoc_linearization",
        "test_weight_decay_pulls_where_the_coordinates_say",
    ],
    "linearization/test_linearized_model.py": [
        "test_degree_and_trainable",
        "test_nnx",
    ],
    "linearization/test_loops_of_linearized_models.py": [
        "test_equinox",
        "test_linen",
        "test_linen_draws_from_the_keys_of_the_call_in_train_mode",
        "test_nnx",
    ],
    "matrix_free/test_matrix_free.py": [
        "test_a_solve_that_stops_early_says_so",
        "test_differentiable_and_compiled_in_a_program_of_the_user",
        "test_gauss_newton_step",
        "test_ridge_regression",
        "test_squared_error_needs_one_gauss_newton_step",
    ],
    "matrix_free/test_preconditioned_operator.py": [
        "test_products_diagonal_and_dense",
    ],
    "matrix_free/test_top_spectrum.py": [
        "test_trace_with_its_error",
    ],
    "models/test_contract.py": [
        "test_fixed_statistics_are_those_of_a_training_step_in_every_layer",
        "test_plain_functions_and_transformed_ones",
        "test_rows_and_columns_of_a_kernel_with_dropout_have_one_mask",
        "test_the_contract",
    ],
    "models/test_in_training.py": [
        "test_a_model_without_batch_statistics_is_the_same_object",
        "test_dropout_that_is_on_stays_on",
        "test_masks_by_hand_are_drawn_from_a_fixed_key",
        "test_value_and_gradient_are_those_of_the_training_step",
    ],
    "models/test_linen.py": [
        "test_running_statistics_are_not_parameters",
    ],
    "models/test_nnx.py": [
        "test_a_model_that_is_merged_as_it_was_built_is_in_train_mode",
    ],
    "models/test_nnx_rngs_argument.py": [
        "test_in_dropout_mode_all_examples_have_one_mask",
        "test_the_kernel_with_a_key_is_that_of_plain_jacrev",
    ],
    "models/test_registry.py": [
        "test_an_adapter_is_found_by_its_entry_point",
    ],
    "models/test_selection.py": [
        "test_outputs_that_are_structures",
    ],
    "models/test_settings_of_jax.py": [
        "test_every_library",
    ],
    "monitor/test_economy_instruments.py": [
        "test_intervals_of_shares_hold_those_of_the_dense_kernel",
        "test_position_is_that_of_the_dense_kernel",
        "test_the_share_of_what_is_not_used_is_0",
        "test_trace_of_a_model_in_bfloat16_is_float32",
        "test_trace_of_batches_where_examples_interact",
    ],
    "monitor/test_first_measurement.py": [
        "test_no_limit",
    ],
    "monitor/test_hook_cost.py": [
        "test_plan_for_large_networks",
    ],
    "monitor/test_loops_as_they_stand.py": [
        "test_a_dictionary_of_all_that_is_trained",
        "test_an_equinox_state_is_followed",
        "test_variables_and_collections_beside_the_parameters_say_the_same",
    ],
    "monitor/test_measurements_show_themselves.py": [
        "test_each_number_is_an_attribute_and_has_its_interval_by_name",
        "test_plain_values",
    ],
    "monitor/test_models_as_they_are.py": [
        "test_tokens_with_smoothed_labels_and_a_loss_of_the_package",
    ],
    "monitor/test_monitor_hook.py": [
        "test_among_the_switches_that_find_faults",
        "test_buffers_are_neither_changed_nor_taken",
        "test_injected_learning_rate_is_read",
    ],
    "monitor/test_monitored_libraries.py": [
        "test_an_injected_rate_is_in_the_margin_of_watch",
        "test_apply_if_finite",
        "test_equinox",
        "test_frozen_parameters_in_the_optimizer_are_followed",
        "test_linen_train_state",
        "test_multi_steps_counts_real_steps",
        "test_multi_transform_from_outside",
        "test_nnx_optimizer",
        "test_sam_chooses_between_states_by_arithmetic",
        "test_statistics_of_a_batch_are_those_of_the_probe_or_the_ones_handed_in",
    ],
    "monitor/test_monitored_losses.py": [
        "test_the_margin_that_is_read_is_that_of_the_stated_descent",
    ],
    "monitor/test_monitored_probes.py": [
        "test_examples_in_both_probes_are_counted",
        "test_held_out_alone_has_no_margin_and_says_why",
        "test_held_out_examples_whose_kernel_is_not_finite_leave_the_step_unmeasured",
        "test_in_a_scan",
        "test_margin_and_drift_of_train_and_alignment_of_held_out",
    ],
    "monitor/test_one_reduction.py": [
        "test_a_state_of_another_reduction_begins_anew",
        "test_random_projections_estimate_the_trace_with_its_error",
        "test_terminal_and_demo_name_the_examples_of_an_alignment",
        "test_terminal_and_demo_name_the_reduction",
    ],
    "monitor/test_public_loops.py": [
        "test_an_nnx_optimizer_of_lora_parameters_alone",
        "test_multi_steps_round_a_residual_of_a_differential_equation",
    ],
    "monitor/test_pure_measure.py": [
        "test_the_kernel_is_measured_without_memory",
    ],
    "monitor/test_run_log.py": [
        "test_a_monitor_that_learns_late_that_it_is_another_run_says_so_and_training_goes_on",
        "test_a_resumed_training_goes_on",
        "test_a_run_of_other_settings_is_refused_where_it_is_made",
        "test_lists_of_numbers_have_axes",
        "test_measurements_are_a_stream_of_the_run_directory",
        "test_other_examples_or_labels_are_refused",
        "test_other_parameters_are_refused_where_they_come",
        "test_with_out_there_are_alerts",
    ],
    "monitor/test_spectral_instrument.py": [
        "test_a_mode_that_grew_unseen_is_found_at_the_restart",
        "test_an_optimizer_that_is_not_recognised_has_no_margin",
        "test_bfloat16_models_are_measured_with_their_noise",
        "test_first_and_warm_measurements_are_the_dense_eigenvalues",
        "test_rayleigh_ritz_leaves_out_what_depends_on_others",
        "test_under_scan_and_vmap_over_seeds",
    ],
    "monitor/test_unwatch.py": [
        "test_a_checkpoint_without_watch_restores_into_a_watched_run",
        "test_the_state_inside_is_that_of_the_optimizer",
    ],
    "monitor/test_watch.py": [
        "test_a_step_that_is_not_scheduled_runs_no_measurement",
        "test_asks_whether_the_compiler_can_be_trusted",
        "test_critical_learning_rate_of_cross_entropy",
        "test_differentiating_through_the_update",
        "test_eigenvalues_below_the_noise_floor_are_nan",
        "test_inside_scan",
        "test_margin_is_read_from_the_optimizer",
        "test_nan_parameters_are_reported_and_training_goes_on",
        "test_not_under_jit_the_numbers_are_the_same",
        "test_own_schedule_for_traced_steps_only",
        "test_record",
        "test_reduced_kernel_has_no_critical_rate_and_says_so",
        "test_reduced_kernel_of_one_output_is_the_full_kernel",
        "test_seeds_in_different_states_are_measured_when_one_is_due",
        "test_state_has_a_fixed_structure",
        "test_state_may_be_donated",
        "test_the_probe_is_copied",
        "test_the_sketch_does_not_begin_with_a_kernel_that_is_not_finite",
        "test_the_sketch_of_a_kernel_tells_its_drift_with_an_error",
        "test_without_a_loss_there_are_no_stability_numbers_and_the_record_says_so",
    ],
    "monitor/test_watch_made_inside.py": [
        "test_a_whole_equinox_module",
        "test_made_inside_a_compiled_training",
        "test_made_inside_and_under_vmap_over_seeds",
        "test_model_made_inside",
    ],
    "monitor/test_watch_never_raises.py": [
        "test_a_pipe_that_nobody_reads_does_not_hold_up_a_compiled_loop",
        "test_a_writer_that_hangs",
        "test_parameters_and_gradients_that_are_not_finite",
    ],
    "monitor/test_watched_optimizers.py": [
        "test_over_seeds_the_measurement_stays_in_a_conditional",
        "test_the_same_bits",
        "test_wrappers_of_optax",
    ],
    "monitor/test_writers_argument.py": [
        "test_a_module_with_log",
        "test_jax_monitoring",
    ],
    "neural_tangents/test_calls.py": [
        "test_cross_terms",
        "test_cross_terms_of_outputs_of_one_shape",
        "test_inside_jit_vmap_and_grad",
        "test_interaction_is_seen_through_tracers_that_f_closes_over",
        "test_memory_budget",
    ],
    "neural_tangents/test_keys_and_numbers.py": [
        "test_a_key_for_one_side_only",
    ],
    "neural_tangents/test_neural_tangents_predict.py": [
        "test_any_loss_compiled_in_everything",
        "test_any_loss_on_squared_error",
        "test_float32_times_of_a_stiff_kernel",
        "test_float64_kernels_keep_their_digits",
        "test_momentum",
        "test_resumed",
        "test_too_many_steps_is_nan",
    ],
    "neural_tangents/test_silent_failures.py": [
        "test_row_07_one_mask_for_every_example",
        "test_row_09_pair_that_could_be_either",
        "test_row_10_variables_of_flax_as_parameters",
        "test_row_25_times_out_of_order",
    ],
    "neural_tangents/test_tutorial.py": [
        "test_tutorial",
    ],
    "optimizer/test_descent_reading.py": [
        "test_a_reading",
        "test_another_update_is_unexplained",
    ],
    "predict/test_predict.py": [
        "test_an_origin_without_ridge_changes_nothing",
        "test_cross_entropy_in_function_space_is_parameter_space",
        "test_jit_and_vmap",
        "test_momentum_in_float32_over_a_million_steps",
        "test_reduced_kernels_of_separable_models_are_exact",
        "test_small_eigenvalues_of_a_float32_kernel_are_learned_as_by_iterating",
    ],
    "predict/test_prediction_derivatives.py": [
        "test_derivatives_by_the_kernel",
        "test_derivatives_in_float32_of_a_decaying_spectrum",
        "test_derivatives_where_a_step_goes_all_the_way_and_beyond",
        "test_second_derivatives_where_eigenvalues_are_apart",
    ],
    "predict/test_prediction_paths.py": [
        "test_a_spectrum_stands_for_its_kernel",
        "test_any_loss",
        "test_mean_and_covariance_over_initialisations",
        "test_stopping_early_is_said",
    ],
    "project/test_benchmarks.py": [
        "test_scan_and_loop_are_the_same_network",
    ],
    "report/test_first_screen.py": [
        "test_a_narrow_screen_has_verdict_six_numbers_and_four_sentences",
    ],
    "report/test_paper.py": [
        "test_names_of_parameters_are_escaped",
        "test_numbers_of_the_checkpoints",
        "test_several_runs",
    ],
    "report/test_report.py": [
        "test_a_page_without_labels_learning_rate_and_history",
        "test_history_below_home_and_of_numpy_arrays",
        "test_history_of_a_monitor_with_a_name_and_of_sessions_with_other_numbers_of_eigenvalues",
        "test_history_without_the_kernel_tier",
        "test_rich_markup_in_names_stays_text",
        "test_the_curve_of_the_alignment_names_its_reduction_and_shows_chance",
        "test_the_page_loads_nothing",
    ],
    "report/test_run_page.py": [
        "test_a_track_that_is_not_stored_says_what_is_missing",
        "test_one_checkpoint_without_labels_and_loss",
        "test_the_answer_has_the_numbers_of_the_run",
    ],
    "report/test_sentences.py": [
        "test_a_dead_network_names_its_dead_layers_and_has_no_slack",
        "test_a_large_margin_at_the_start_deserves_a_sentence_and_a_warm_up",
        "test_alignment_that_fell",
        "test_layers_that_learn_differently_are_named",
        "test_predictions_become_certain_only_where_they_do",
        "test_two_models_say_where_each_kernel_lies",
    ],
    "test_display.py": [
        "test_numbers_print_as_numbers",
    ],
    "test_progress.py": [
        "test_the_first_measurement_of_a_monitor_shows_it_and_no_other_does",
    ],
    "test_public_calls.py": [
        "test_no_call_promotes_ranks_or_dtypes",
    ],
}
