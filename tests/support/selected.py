"""Selections of tests that run by themselves: `conftest.py` marks them."""

# `pytest -m blas`: files whose numbers come out of LAPACK, so that they are also run with other BLAS kernels.
BLAS = {
    "analysis/test_generalization.py",
    "kernel/test_effective_ranks.py",
    "kernel/test_spectrum.py",
    "matrix_free/test_top_spectrum.py",
    "predict/test_predict.py",
}

# `pytest -m smoke`: what catches most breakage within a minute, one or two tests for a public function.
# File in `tests` -> its tests; of a parametrized test it is the first case that is not marked slow.
SMOKE = {
    "analysis/test_alignment.py": [
        "test_hand_oracles",
        "test_full_kernel_against_the_dense_formula",
        "test_label_power_against_eigenvectors",
    ],
    "analysis/test_drift.py": ["test_hand_oracles", "test_centring_of_a_full_kernel_is_per_output"],
    "analysis/test_generalization.py": ["test_reduced_kernel_against_refits"],
    "analysis/test_modes.py": [
        "test_time_constants",
        "test_steps_against_iterated_gradient_descent",
        "test_reachable_power",
    ],
    "analysis/test_stability.py": [
        "test_mse_formula_and_denominator",
        "test_curvature_is_the_gauss_newton_matrix",
    ],
    "baselines/test_baselines.py": ["test_regression", "test_messages"],
    "checking/test_selfcheck.py": ["test_a_model_that_is_right", "test_what_can_be_wrong"],
    "checkpoints/test_checkpoints.py": [
        "test_v1_checkpoint_and_its_item",
        "test_equinox_module",
        "test_key_that_climbs_out_is_refused",
    ],
    "commands/test_compare_command.py": ["test_compare"],
    "commands/test_command_line.py": ["test_version"],
    "comparison/test_compare.py": [
        "test_drift",
        "test_alignment_and_label_power",
        "test_repr_is_one_line",
    ],
    "measuring/test_measure.py": ["test_a_whole_measurement_is_the_short_one_and_more"],
    "comparison/test_track.py": ["test_kernels_and_their_distances"],
    "engine/test_blocks.py": ["test_functions_with_different_numbers_of_outputs"],
    "engine/test_caches.py": ["test_cleared"],
    "engine/test_ntk.py": [
        "test_reductions",
        "test_default_is_the_mean_over_outputs",
        "test_leaf_groups_by_glob",
        "test_preconditioned_kernel",
        "test_every_budget_gives_the_same_kernel",
        "test_inside_jit_grad_and_vmap",
        "test_interacting_examples_are_refused_and_joint_is_right",
        "test_plan_says_how_and_prints_itself",
        "test_kernel_prints_its_convention_and_acts_as_an_array",
    ],
    "engine/test_ntk_errors.py": [
        "test_what_f_raises_says_what_f_was_given",
        "test_nan_parameters",
        "test_budget_too_small_names_the_smallest_that_works",
    ],
    "engine/test_oracle.py": ["test_case_in_float64_and_by_leaf", "test_model_in_float32"],
    "engine/test_transformed.py": ["test_gradient_through_the_kernel"],
    "judging/test_verdict.py": ["test_regime"],
    "gradients/test_gradient_kernel.py": [
        "test_mean_of_the_kernel_is_the_squared_gradient_of_the_loss",
        "test_inside_jit_and_grad",
    ],
    "kernel/test_effective_ranks.py": ["test_hand_oracles"],
    "kernel/test_spectrum.py": [
        "test_hand_oracle",
        "test_vectors_reconstruct_the_kernel",
        "test_ranks_are_over_resolved_eigenvalues_only",
        "test_refuses_what_has_no_eigenvalues",
    ],
    "linearization/test_gap.py": ["test_against_the_dense_jacobian"],
    "linearization/test_linearize.py": [
        "test_linear_model_against_the_dense_jacobian",
        "test_taylor_is_exact_for_polynomials_of_its_degree",
    ],
    "linearization/test_linearized_model.py": ["test_callable"],
    "losses/test_losses.py": ["test_values", "test_factors_are_those_of_the_hessian"],
    "matrix_free/test_matrix_free.py": ["test_products", "test_ridge_regression"],
    "matrix_free/test_top_spectrum.py": ["test_an_operator_without_its_kernel"],
    "models/test_functionalize.py": [
        "test_values_are_those_of_the_library",
        "test_restore_gives_the_librarys_own_object",
        "test_parameters_in_other_containers_are_matched_by_path",
    ],
    "models/test_models_messages.py": ["test_objects_that_are_no_models"],
    "models/test_paths.py": [
        "test_the_choice_of_trainable_leaves",
        "test_differences_list_every_path_once",
    ],
    "monitor/test_monitor_hook.py": [
        "test_never_raises_into_the_loop",
    ],
    "monitor/test_schedules.py": ["test_steps", "test_as_schedule"],
    "monitor/test_watch.py": ["test_values_at_the_scheduled_steps_match_the_naive_kernel"],
    "monitor/test_watched_optimizers.py": ["test_the_same_bits"],
    "monitor/test_writers.py": ["test_writers_follow_the_protocol", "test_json_lines_round_trip"],
    "neural_tangents/test_calls.py": ["test_nngp", "test_vector_product"],
    "neural_tangents/test_conformance.py": ["test_kernel"],
    "neural_tangents/test_neural_tangents_messages.py": ["test_axes", "test_implementation"],
    "neural_tangents/test_neural_tangents_predict.py": ["test_mse"],
    "neural_tangents/test_silent_failures.py": ["test_row_06_batch_norm_by_examples"],
    "optimizer/test_descent_reading.py": ["test_decoupled_decay_is_the_share_of_the_largest"],
    "predict/test_predict.py": [
        "test_descent_is_iterated_descent",
        "test_momentum_is_iterated_momentum",
        "test_infinite_time_is_ridge_regression",
        "test_flow_is_the_matrix_exponential",
        "test_messages",
    ],
    "project/test_docs.py": [
        "test_every_public_name_is_documented_exactly_once",
        "test_links_between_files_lead_somewhere",
    ],
    "project/test_house_style.py": [
        "test_imports_point_one_way",
        "test_every_folder_is_a_known_layer",
    ],
    "project/test_package.py": ["test_import_loads_no_framework", "test_versions_agree"],
    "report/test_report.py": [
        "test_the_page_holds_verdict_numbers_and_conventions",
        "test_hostile_names_stay_text",
        "test_json",
    ],
    "runs/test_run_directories.py": ["test_round_trip", "test_other_settings_are_refused"],
    "test_descent.py": ["test_the_critical_rate_has_margin_one"],
}
